package acp

import (
	"log/slog"
	"time"

	"code.wake.dev/wake/internal/agent"
	"code.wake.dev/wake/internal/process"
)

// Provider runs agents that speak the Agent Client Protocol. The zero value gives them an empty
// environment.
type Provider struct {
	User    *process.User // that they run as; nil: this process's own
	Environ []string      // wake's environment; agents get it less what is withheld, see [agent.Environment]
	Grace   time.Duration // between SIGTERM and SIGKILL; default 5 s
	Parent  []string      // command of the server by which agents tell their parent something (see [parent.NewServer]); empty: they can't
	Linger  time.Duration // for the program to exit once all is done; default 2 s
	Logger  *slog.Logger  // default: none

	restEvery time.Duration // default [restEvery]
}

// startTimeout is how long the program may take for each answer before its first prompt, unless the request says.
const startTimeout = time.Minute

// restEvery is the least time between two resting points of which the host is told.
const restEvery = time.Second

// bypass is the permission mode in which all that an agent asks for is allowed.
const bypass = "bypassPermissions"

// Capabilities implements [agent.Provider].
func (*Provider) Capabilities() agent.Capabilities {
	return agent.Capabilities{TellsLate: true, KeepsLate: true}
}
