"""The version of the package, as generated kernels name it."""

VERSION = "0.1.0"
