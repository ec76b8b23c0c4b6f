# SPDX-License-Identifier: Apache-2.0
"""The subcommands of `builder`: one module each, imported when it runs."""
