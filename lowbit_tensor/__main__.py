"""`python -m lowbit_tensor` is the command `lowbit`."""

import sys

from .cli import main

sys.exit(main())
