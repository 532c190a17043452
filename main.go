// Onlyone runs exactly one copy of a command across hosts, under a lock in Consul.
package main

import (
	"os"

	"github.com/a-seed-0bc5ead7/onlyone/cli"
)

func main() {
	if code, ok := cli.Helper(os.Args); ok {
		os.Exit(code)
	}
	os.Exit(cli.Main(os.Args, os.Stdout, os.Stderr))
}
