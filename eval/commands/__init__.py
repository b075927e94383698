"""The subcommands of ``memecourt-eval``, a file each; what is heavy is imported inside."""
