package keeper

import (
	"os"
	"os/exec"
)

// Each program that can open keepers is one itself, if it is started as one: it becomes
// a keeper or a guard here, and ends. The libraries that a keeper doesn't need aren't there
// by then: Go initialises packages in the order of their paths, as far as their
// imports allow, and the path of this module comes early in the alphabet.
func init() { //nolint:gochecknoinits // main is too late: a keeper would pay for every library of the program
	if len(os.Args) < 2 {
		return
	}
	switch os.Args[1] {
	case keeperVerb:
		os.Exit(serveMain())
	case guardVerb:
		if len(os.Args) == 5 {
			os.Exit(guardMain(Fence(os.Args[2]), groupOf(os.Args[3], os.Args[4])))
		}
	}
}

// selfCommand returns this program as a keeper or a guard.
func selfCommand(args ...string) *exec.Cmd {
	c := exec.Command("/proc/self/exe", args...) //nolint:noctx // it outlives this program
	c.Args[0], c.Dir = "wake", "/"
	c.Env = []string{"GOMAXPROCS=1", "GOTRACEBACK=single"}
	return c
}
