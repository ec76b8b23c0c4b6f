# SPDX-License-Identifier: Apache-2.0
"""What a probe asks of a server, over whichever protocol, and what a model answers."""
