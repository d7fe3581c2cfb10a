package guard

import (
	"os"
	"os/exec"
)

// Each program that can start guards is one itself, if it is started as one: it becomes
// a guard here, and ends. The libraries that a guard doesn't need aren't there by
// then: Go initialises packages in the order of their paths, as far as their
// imports allow, and the path of this module comes early in the alphabet. That is why
// this room has few imports: net alone would have it wait for most of the others.
func init() { //nolint:gochecknoinits // main is too late: a guard would pay for every library of the program
	if len(os.Args) == 5 && os.Args[1] == guardVerb {
		os.Exit(guardMain(Fence(os.Args[2]), groupOf(os.Args[3], os.Args[4])))
	}
}

// guardVerb is the argument with which the program is a guard.
const guardVerb = "keeper-guard"

// SelfCommand returns this program as a guard or, in package keeper, as a keeper.
func SelfCommand(args ...string) *exec.Cmd {
	c := exec.Command("/proc/self/exe", args...) //nolint:noctx // it outlives this program
	c.Args[0], c.Dir = "wake", "/"
	c.Env = []string{"GOMAXPROCS=1", "GOTRACEBACK=single"}
	return c
}
