# SPDX-License-Identifier: Apache-2.0
"""`ServeConfig` -> a pipeline on its device: checked first, loaded, changed as the entry asks."""
