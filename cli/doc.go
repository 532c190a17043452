// Package cli is onlyone's command line: it turns arguments and ONLYONE_* variables into
// plain options, sets up what is said on stderr, and turns what comes back into an exit code.
//
// What it promises:
//   - The command line is cut at the first "--" before the library parses it, so that nothing
//     of the guarded command is ever taken for ours. Flags may stand before or after NAME.
//   - All that can be found wrong without Consul is found before the first request: one line
//     on stderr that says what, why and what to type, nothing on stdout, exit 64.
//   - stdout belongs to the guarded command. Only help, version and completion, when asked
//     for, and --explain write to it.
//   - It never calls os.Exit: Main returns the exit code.
//
// What it doesn't know: Consul, leases and processes. App.Run is called with RunOptions and
// does the work.
package cli
