"""What a run folder shows to a person. Reads files; imports neither TensorFlow nor Horovod."""
