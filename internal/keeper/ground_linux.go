package keeper

import (
	"context"
	"net"
	"time"

	"code.wake.dev/wake/internal/keeper/guard"
)

// ground is what a keeper stands on: the system, or a [Machine].
type ground interface {
	// prepareServer gives the keeper its tree, its deadline and its alarm.
	prepareServer(s *server) error
	// acceptRunners has runners that come be greeted.
	acceptRunners(s *server) error
	// hideSecrets hides what the keeper knows from other programs.
	hideSecrets() error
	// ofTree reports whether a peer is of the keeper's own tree.
	ofTree(s *server, peer net.Conn) bool
	// endLeftovers ends what the guard has left of the tree.
	endLeftovers(s *server)
	// keeperPid returns the keeper's process id; 0: it is no process.
	keeperPid() int
}

// tree is what a keeper's programs are parts of: a guard has it in its hands. It reports to the keeper what becomes
// of them.
type tree interface {
	StartProgram(id uint32, mark string, s guard.Program) (guard.Pipes, error)
	EndProgram(id uint32, mark string, grace time.Duration)
	// FreezeTree stops the tree and reports why something of it still runs.
	FreezeTree(patience time.Duration) error
	ThawTree()
	// ExtendDeadline moves the time, of [process.Uptime], at which the tree ends if its keeper can't see to that; 0 is never.
	ExtendDeadline(kill int64)
	// KillTree ends the tree.
	KillTree()
	// TreeGone is closed when the tree is gone.
	TreeGone() <-chan struct{}
}

// timer does something at a time of [process.Uptime] in ns. What has passed is due at once.
type timer interface {
	MoveTo(at int64) error
}

// road leads from a runner to its keepers.
type road interface {
	// launch starts a keeper in a folder, and connects with it.
	launchInDir(dir string) (net.Conn, error)
	// dial connects with the keeper of a folder. It fails with [ErrGone] if that is gone.
	dialDir(ctx context.Context, dir string) (net.Conn, error)
}
