"""Where examples come from (sources), which rank sees which (shard), and batches of them (pipeline)."""
