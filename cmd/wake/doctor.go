package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/spf13/cobra"

	"code.wake.dev/wake/internal/deliver"
	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/health"
	"code.wake.dev/wake/internal/keeper"
	"code.wake.dev/wake/internal/keys"
	"code.wake.dev/wake/internal/service"
	"code.wake.dev/wake/internal/timeline"
	"code.wake.dev/wake/internal/topology"
	"code.wake.dev/wake/internal/workspace"
	"code.wake.dev/wake/pkg/subjects"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/services/runner/owner"
)

// verdict is how a check went.
type verdict string

const (
	fine   verdict = "ok"
	warned verdict = "warn" // it works, but the operator should look
	failed verdict = "fail"
)

// check is one thing that a doctor looked at.
type check struct {
	Name    string  `json:"name"`
	Verdict verdict `json:"verdict"`
	Text    string  `json:"text"`
	Remedy  string  `json:"remedy,omitempty"`
}

type diagnosis struct {
	OK     bool    `json:"ok"` // nothing failed
	Checks []check `json:"checks"`
}

func (a hostVerbs) doctorCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "doctor",
		Short: "Say what is wrong with an installation, and what to do",
		RunE: func(cmd *cobra.Command, _ []string) error {
			nc, err := a.connectServer(cmd.Context())
			if err != nil {
				return err
			}
			defer nc.Close()
			if err := needStreams(nc, "wake doctor looks at all of them, as the user init may"); err != nil {
				return err
			}
			js, err := jetstream.New(nc)
			if err != nil {
				return err
			}
			d := doctor{nc: nc, js: js, names: a.names, dataDir: a.server.DataDir}
			found := d.runChecks(cmd.Context())
			if err := a.printDiagnosis(found); err != nil {
				return err
			}
			if !found.OK {
				return serviceError(codeFailed, "", "the installation has problems")
			}
			return nil
		},
	}
}

type doctor struct {
	nc      *nats.Conn
	js      jetstream.JetStream
	names   subjects.Names
	dataDir string
}

const (
	// doctorWait bounds each check of a doctor.
	doctorWait = 2 * time.Second
	// listWait bounds one that lists consumers: where a server of a cluster is away, the others wait 4 s for its part of the list
	// (jsClusteredConsumerListRequest of nats-server 2.15).
	listWait = 7 * time.Second
)

func (d doctor) runChecks(ctx context.Context) diagnosis {
	var all []check
	for _, look := range []struct {
		wait  time.Duration
		check func(context.Context) []check
	}{
		{doctorWait, d.checkServer}, {doctorWait, d.checkJetStream}, {doctorWait, d.checkStorage}, {doctorWait, d.checkStreams},
		{listWait, d.checkServices}, {doctorWait, d.checkPools}, {doctorWait, d.checkHealth}, {doctorWait, d.checkDeadLetters}, {doctorWait, d.checkDisk},
		{doctorWait, d.checkFence}, {doctorWait, d.checkKeepers}, {doctorWait, d.checkFolders},
	} {
		limited, cancel := context.WithTimeout(ctx, look.wait)
		all = append(all, look.check(limited)...)
		cancel()
		if last := all[len(all)-1]; last.Verdict == failed && last.Name == "jetstream" {
			break // the rest could only time out
		}
	}
	found := diagnosis{OK: true, Checks: all}
	for _, c := range all {
		found.OK = found.OK && c.Verdict != failed
	}
	return found
}

func (d doctor) checkServer(context.Context) []check {
	rtt, err := d.nc.RTT()
	if err != nil {
		return []check{{"server", failed, err.Error(), "is the network up?"}}
	}
	text := fmt.Sprintf("%s, nats-server %s, %s away", service.Address(d.nc.ConnectedUrl()), d.nc.ConnectedServerVersion(), rtt.Round(10*time.Microsecond))
	return []check{{"server", fine, text, ""}}
}

func (d doctor) checkJetStream(ctx context.Context) []check {
	info, err := d.js.AccountInfo(ctx)
	switch {
	case err == nil:
		return []check{storedCheck(info)}
	case d.isLeaderless(err):
		return []check{{"jetstream", failed, "no server of the cluster leads JetStream: " + err.Error(), quorumRemedy}}
	}
	return []check{{"jetstream", failed, err.Error(), "enable JetStream on the server and for the account, connect to a server that has it, or use credentials that may use it"}}
}

// isLeaderless reports whether an error comes of a cluster that lacks a leader.
func (d doctor) isLeaderless(err error) bool {
	return d.nc.ConnectedClusterName() != "" && topology.LeaderMoved(err) && !errors.Is(err, jetstream.ErrJetStreamNotEnabled) // as on a leaf node
}

const quorumRemedy = "start the cluster's other servers: more than half of them have to be up; if they are, they elect a leader within seconds"

// checkStorage has the server write to the bucket of states: a NATS server whose disk was full refuses that for good, and tells nothing of it.
func (d doctor) checkStorage(ctx context.Context) []check {
	kv, err := d.js.KeyValue(ctx, d.names.StateBucket())
	if err != nil {
		return nil // the check of the streams says so
	}
	err = keys.Delete(ctx, kv, d.names.StateKey("doctor", "probe"), 0) // which no service reads
	if err == nil || errors.Is(err, context.DeadlineExceeded) {        // doctor's credentials don't permit it, or the bucket has no leader
		return nil
	}
	return []check{{"storage", failed, "nothing is stored: " + err.Error(), storageRemedy}}
}

const storageRemedy = "make room on the server's disk; a server other than that of `wake up` has to be started again then"

// nearLimit is the part of the account's storage from which on the operator should see
// to it: at its end nothing is stored any more, be the streams ever so empty.
const nearLimit = 0.8

// storedCheck says how much of what the account may store is in use.
func storedCheck(info *jetstream.AccountInfo) check {
	c := check{"jetstream", fine, bytesText(info.Store) + " stored, no limit", ""}
	if limit := info.Limits.MaxStore; limit > 0 {
		part := float64(info.Store) / float64(limit)
		c.Text = fmt.Sprintf("%s stored, %.0f%% of %s", bytesText(info.Store), 100*part, bytesText(uint64(limit)))
		if part >= nearLimit {
			c.Verdict, c.Remedy = warned, "raise the limit of the account, or let events age out with `wake init --max-age`"
		}
	}
	return c
}

// checkStreams checks the topology, the fill of the events and, with the time that
// the answer carries, the clock.
func (d doctor) checkStreams(ctx context.Context) []check {
	if err := topology.Verify(ctx, d.js, d.names); err != nil {
		mismatch, ok := errors.AsType[*topology.Mismatch](err)
		switch {
		case !ok && d.isLeaderless(err):
			return []check{{"streams", failed, err.Error(), quorumRemedy}}
		case !ok:
			return []check{{"streams", failed, err.Error(), ""}}
		}
		var all []check
		for _, problem := range mismatch.Problems {
			all = append(all, check{"streams", failed, problem, mismatch.Remedy})
		}
		return all
	}
	orphans, err := topology.Leaderless(ctx, d.js, d.names)
	if err != nil {
		return []check{{"streams", failed, err.Error(), ""}}
	}
	if len(orphans) > 0 {
		text := strings.Join(orphans, ", ") + ": no server leads it"
		return []check{{"streams", failed, text, "wait for the servers to elect one; if they never do, see \"A stream has no leader\" in docs/operations.md"}}
	}
	asked := time.Now()
	stream, err := d.js.Stream(ctx, d.names.EventsStream())
	if err != nil {
		return []check{{"streams", failed, err.Error(), ""}}
	}
	info := stream.CachedInfo()
	return slices.Concat([]check{fillCheck(info)}, copiesCheck(info), awayCheck(info), []check{clockCheck(asked, time.Now(), info.TimeStamp)})
}

// fillCheck says how full the stream of events is: at 80 % runners take no new runs.
func fillCheck(info *jetstream.StreamInfo) check {
	c := check{"streams", fine, fmt.Sprintf("%d events, %s, %d replica(s)", info.State.Msgs, bytesText(info.State.Bytes), info.Config.Replicas), ""}
	if limit := info.Config.MaxBytes; limit > 0 {
		part := float64(info.State.Bytes) / float64(limit)
		c.Text += fmt.Sprintf(", %.0f%% of %s", 100*part, bytesText(uint64(limit)))
		if part >= 0.8 {
			c.Verdict, c.Remedy = failed, "no new runs are taken: raise the limit with `wake init --max-bytes`, or let events age out with --max-age"
		}
	}
	return c
}

// copiesCheck warns of events that only one of several servers keeps.
func copiesCheck(info *jetstream.StreamInfo) []check {
	if info.Cluster == nil || info.Cluster.Name == "" || info.Config.Replicas > 1 {
		return nil
	}
	return []check{{"streams", warned, "one server of the cluster " + info.Cluster.Name + " keeps the events", "`wake init --replicas 3` lets others keep them, too"}}
}

// maxSilence is how long a server that others replicate to may say nothing until it is away: it answers each second.
const maxSilence = 10 * time.Second

// awayCheck tells of servers that should keep the events and are away, or behind.
func awayCheck(info *jetstream.StreamInfo) []check {
	if info.Cluster == nil {
		return nil
	}
	var away, late []string
	for _, r := range info.Cluster.Replicas {
		switch {
		case r.Offline || !r.Current && r.Active > maxSilence:
			away = append(away, r.Name)
		case !r.Current:
			late = append(late, r.Name)
		}
	}
	var all []check
	if len(away) > 0 {
		left := info.Config.Replicas/2 - len(away) // that may be lost, too
		text := fmt.Sprintf("%s of the cluster is away", strings.Join(away, ", "))
		if left == 0 {
			text += ": with one more nothing is stored"
		}
		all = append(all, check{"streams", failed, text, "start it again; what it has missed it gets from the others"})
	}
	if len(late) > 0 {
		all = append(all, check{"streams", warned, fmt.Sprintf("%s of the cluster lacks events that others have", strings.Join(late, ", ")), "wait: it catches up by itself"})
	}
	return all
}

// maxSkew is how far clocks may differ before a user notices it in a timeline.
const maxSkew = time.Second

// clockCheck compares our clock with the server's, which was read between asked and
// answered.
func clockCheck(asked, answered, server time.Time) check {
	skew := server.Sub(asked.Add(answered.Sub(asked) / 2)).Round(time.Millisecond)
	if skew.Abs() > maxSkew {
		return check{"clock", warned, fmt.Sprintf("the server's is %s off", skew), "synchronize the clocks; order is not affected, times in logs are"}
	}
	return check{"clock", fine, fmt.Sprintf("within %s of the server's", max(skew.Abs(), time.Millisecond)), ""}
}

// checkServices checks which services read the log and how far behind they are.
func (d doctor) checkServices(ctx context.Context) []check {
	all := []check{d.checkConsumer(ctx, "runner", d.names.QueueStream(), subjects.RunsConsumer, "runs wait", isServed)}
	readers, err := d.activeReaders(ctx)
	for _, name := range []string{subjects.RecorderConsumer, subjects.SnapshotterConsumer, subjects.AlerterConsumer} {
		read := func(*jetstream.ConsumerInfo) bool { // if it can't be known, the others say why
			return err != nil || slices.ContainsFunc(readers, func(reader string) bool { return eventlog.IsReader(reader, name) })
		}
		all = append(all, d.checkConsumer(ctx, name, d.names.EventsStream(), name, "events behind", read))
	}
	return append(all, d.checkExpiry(ctx)...)
}

// checkPools tells of nodes that wait for a runner of their pool while none takes one.
func (d doctor) checkPools(ctx context.Context) []check {
	stream, err := d.js.Stream(ctx, d.names.QueueStream())
	if err != nil {
		return nil // streams has said so
	}
	info, err := stream.Info(ctx, jetstream.WithSubjectFilter(d.names.AllQueueNodes()))
	if err != nil {
		return []check{{"pool", failed, err.Error(), ""}}
	}
	var all []check
	for _, subject := range slices.Sorted(maps.Keys(info.State.Subjects)) {
		pool, err := d.names.ParseQueueNode(subject)
		if err != nil {
			continue
		}
		c, err := stream.Consumer(ctx, subjects.NodesConsumer(pool))
		if err == nil && isServed(c.CachedInfo()) || err != nil && !errors.Is(err, jetstream.ErrConsumerNotFound) {
			continue
		}
		n := d.countOffers(ctx, stream, subject)
		if n == 0 {
			continue
		}
		text := fmt.Sprintf("%s: %d node(s) wait, and no runner takes one", pool, n)
		remedy := "start one with --pool " + pool + ", unless those that are there have their hands full (--max-agents)"
		if strings.HasPrefix(pool, owner.PoolOf("")) {
			remedy = "that runner has the folder of their run: start it again, or wait until the run goes on elsewhere (--workspace-grace)"
		}
		all = append(all, check{"pool", warned, text, remedy})
	}
	return all
}

// maxOffers bounds how many nodes that wait are counted.
const maxOffers = 100

// countOffers counts the nodes that are offered to a pool, some of them more than once, without those of runs that have ended: the next runner of
// the pool drops these.
func (d doctor) countOffers(ctx context.Context, stream jetstream.Stream, subject string) (n int) {
	kv, err := d.js.KeyValue(ctx, d.names.StateBucket())
	if err != nil {
		return 0 // streams has said so
	}
	seen := map[string]bool{}
	for seq, looked := uint64(1), 0; looked < maxOffers; looked++ {
		m, err := stream.GetMsg(ctx, seq, jetstream.WithGetMsgSubject(subject))
		if err != nil {
			break // there are no more
		}
		seq = m.Sequence + 1
		var offer wire.NodeOffer
		if wire.Unmarshal(m.Data, &offer) == nil { // else it is sealed
			exec := offer.RunID + "/" + offer.ExecID
			if seen[exec] {
				continue
			}
			seen[exec] = true
			if _, err := kv.Get(ctx, d.names.StateKey("runner", offer.RunID)); errors.Is(err, jetstream.ErrKeyNotFound) {
				continue
			}
		}
		n++
	}
	return n
}

// isServed reports whether somebody takes from a consumer.
func isServed(c *jetstream.ConsumerInfo) bool { return c.NumWaiting > 0 || c.NumAckPending > 0 }

// checkExpiry warns when the stream is about to drop what isn't recorded, or has done so,
// and when what isn't recorded is old.
func (d doctor) checkExpiry(ctx context.Context) []check {
	lag, err := eventlog.LagOf(ctx, d.js, d.names, subjects.RecorderConsumer)
	if err != nil {
		return nil // the check of the recorder says it
	}
	return lagChecks(lag)
}

// maxLag is the age of what isn't recorded from which on it is more than a rush.
const maxLag = 5 * time.Minute

func lagChecks(lag eventlog.Lag) []check {
	switch {
	case lag.Danger():
	case lag.Age > maxLag:
		text := fmt.Sprintf("the oldest of %d events that aren't recorded is %s old", lag.Events, lag.Age.Round(time.Second))
		return []check{{"lag", warned, text, "see \"The recorder is behind\" in docs/operations.md"}}
	default:
		return nil
	}
	text := fmt.Sprintf("the oldest of %d events that aren't recorded is %.0f%% as old as the stream keeps them", lag.Events, 100*lag.Part)
	return []check{{"expiry", failed, text, "no new runs are taken: start the recorder, or keep events for longer with `wake init --max-age`"}}
}

// activeReaders returns the consumers by which processes read the log at the moment.
// The durable ones only show where the services are.
func (d doctor) activeReaders(ctx context.Context) (names []string, err error) {
	stream, err := d.js.Stream(ctx, d.names.EventsStream())
	if err != nil {
		return nil, err
	}
	list := stream.ListConsumers(ctx)
	for info := range list.Info() {
		if info.NumWaiting > 0 || info.NumPending > 0 {
			names = append(names, info.Name)
		}
	}
	return names, list.Err()
}

func (d doctor) checkConsumer(ctx context.Context, service, stream, durable, pending string, running func(*jetstream.ConsumerInfo) bool) check {
	c, err := d.js.Consumer(ctx, stream, durable)
	start := fmt.Sprintf("start one with `wake up` or `wake %s`", service)
	switch {
	case errors.Is(err, jetstream.ErrConsumerNotFound):
		return check{service, warned, "none has run since the server was started", start}
	case err != nil:
		return check{service, failed, err.Error(), ""}
	}
	info := c.CachedInfo()
	text := fmt.Sprintf("%d %s", info.NumPending+uint64(info.NumAckPending), pending)
	if !running(info) {
		return check{service, warned, "none is at work, " + text, start + "; if one is there, its log says what it waits for"}
	}
	return check{service, fine, "running, " + text, ""}
}

// checkHealth tells what keeps processes, or parts of them, from their work. They go on trying.
func (d doctor) checkHealth(ctx context.Context) []check {
	reports, err := health.Reports(ctx, d.js, d.names)
	if err != nil {
		return []check{{"health", failed, err.Error(), ""}}
	}
	var all []check
	for _, r := range reports {
		for _, t := range r.Troubles {
			text := fmt.Sprintf("%s, for %s: %s: %s", r.Process, time.Since(time.UnixMilli(t.Since)).Round(time.Second), t.Part, t.Text)
			all = append(all, check{health.Service(t.Part), failed, text, "it goes on by itself once that is over; see \"A part doesn't work\" in docs/operations.md"})
		}
	}
	if len(all) == 0 {
		return []check{{"health", fine, "no part is in trouble", ""}}
	}
	return all
}

// checkDeadLetters tells what services couldn't use from what lost its writer and from what
// sinks didn't take.
func (d doctor) checkDeadLetters(ctx context.Context) []check {
	name := d.names.DeadLetterStream()
	stream, err := d.js.Stream(ctx, name)
	if err != nil {
		return nil // streams has said so
	}
	info, err := stream.Info(ctx, jetstream.WithSubjectFilter(d.names.AllDeadLetters()))
	if err != nil {
		return []check{{"poison", failed, err.Error(), ""}}
	}
	var poison, late, alerts uint64
	for subject, n := range info.State.Subjects {
		service, err := d.names.ParseDeadLetter(subject)
		switch _, ofSink := deliver.SinkOf(service); {
		case err == nil && ofSink:
			alerts += n
		case err == nil && service == eventlog.DeadService:
			late += n
		default:
			poison += n
		}
	}
	all := []check{{"poison", fine, "none", ""}}
	switch {
	case poison > 0:
		all[0] = check{"poison", warned, fmt.Sprintf("%d message(s) could not be used", poison), fmt.Sprintf("nats stream view %s --translate 'wake decode'", name)}
	case late > 0:
		all[0].Text = fmt.Sprintf("none; %d event(s) of runners that had lost their nodes were set aside", late)
	}
	if alerts > 0 {
		all = append(all, check{"sinks", warned, fmt.Sprintf("%d alert(s) were given up", alerts), "`wake alerts deadletter list` says why, and `retry` sends them again"})
	}
	return all
}

// lowDisk is the free space below which a disk counts as full: the server stops
// storing before there is none left.
const lowDisk = 1 << 30

func (d doctor) checkDisk(context.Context) []check {
	free, err := freeBytes(d.dataDir)
	if err != nil {
		return []check{{"disk", fine, d.dataDir + " doesn't exist here", ""}}
	}
	text := fmt.Sprintf("%s free at %s", bytesText(free), d.dataDir)
	if free < lowDisk {
		return []check{{"disk", failed, text, "make room, or choose another --data-dir"}}
	}
	return []check{{"disk", fine, text, ""}}
}

// freeBytes is how much room there is for files in a folder.
func freeBytes(dir string) (uint64, error) {
	var fs syscall.Statfs_t
	err := syscall.Statfs(dir, &fs)
	return fs.Bavail * uint64(fs.Bsize), err // the size of a block, which some systems give a sign
}

// checkFence says how agents that are started here end with their keepers, and what can't be had.
func (d doctor) checkFence(ctx context.Context) []check {
	var best keeper.Fence
	var missing []string
	for _, f := range keeper.Fences() {
		err := keeper.Try(ctx, f, keeper.Groups{})
		if err == nil {
			best = f
			break
		}
		missing = append(missing, fmt.Sprintf("no %s: %v", f, err))
	}
	text := strings.Join(append([]string{string(best)}, missing...), "; ")
	if best == "" {
		return []check{{"fence", warned, strings.Join(missing, "; "), "agents can't be kept from going on without their runner here; `--fence none` runs them all the same"}}
	}
	groups := keeper.ProbeGroups(ctx, best)
	all := []check{{"fence", fine, strings.Replace(text, string(best), groups.Means(best), 1), ""}}
	if groups.Memory == "" {
		all = append(all, check{"memory", fine, "no control group with a memory controller can be written here: nodes with policy.memory are refused", "see \"Memory\" in docs/operations.md"})
	}
	return all
}

// checkKeepers tells of those of the runner, or of wake up, that has the data directory.
func (d doctor) checkKeepers(ctx context.Context) []check {
	var live, frozen, left int
	var bytes int64
	var all []check
	for _, dir := range []string{d.dataDir, filepath.Join(d.dataDir, "runner")} {
		found, err := keeper.Survey(ctx, filepath.Join(dir, "keepers"))
		if err != nil {
			all = append(all, check{"keepers", warned, err.Error(), ""})
		}
		for _, f := range found {
			bytes += f.Bytes
			switch {
			case !f.Lives:
				left++
			case f.Frozen:
				frozen++
			default:
				live++
			}
			if f.Full != "" {
				text := fmt.Sprintf("%s of run %s waits, its journal has no room: %s", f.Node, f.Run, f.Full)
				all = append(all, check{"keepers", warned, text, "see to the log: what it has needs no room; else make room, or give the runner a larger --journal-limit"})
			}
		}
	}
	text := fmt.Sprintf("%d at work, %d frozen, %d gone; journals of %s", live, frozen, left, bytesText(uint64(bytes)))
	return append(all, check{"keepers", fine, text, ""})
}

// checkFolders says what snapshots of folders take.
func (d doctor) checkFolders(ctx context.Context) []check {
	used, err := workspace.Used(ctx, d.js, d.names)
	if err != nil {
		return []check{{"folders", warned, err.Error(), "`wake init` creates the object store"}}
	}
	text := fmt.Sprintf("%d packs of snapshots, %s; they go with their runs, or before, by --retain-folders of the recorder", used.Packs, bytesText(uint64(used.Bytes)))
	return []check{{"folders", fine, text, ""}}
}

func (a hostVerbs) printDiagnosis(found diagnosis) error {
	if a.json {
		return a.printJSON(found)
	}
	for _, c := range found.Checks {
		if err := printCheck(a.out, c, useColor(a.out)); err != nil {
			return err
		}
	}
	return nil
}

func printCheck(w io.Writer, c check, color bool) error {
	sign := fmt.Sprintf("%-6s", c.Verdict)
	if color {
		sign = sgrText(map[verdict]string{fine: green, warned: yellow, failed: red}[c.Verdict], sign)
	}
	lines := sign + fmt.Sprintf("%-12s ", c.Name) + timeline.Line(c.Text, maxMessage) + "\n"
	if c.Remedy != "" {
		lines += strings.Repeat(" ", 19) + "→ " + timeline.Line(c.Remedy, maxMessage) + "\n"
	}
	_, err := io.WriteString(w, lines)
	return err
}

func bytesText(n uint64) string {
	const unit = 1024
	if n < unit {
		return fmt.Sprintf("%d B", n)
	}
	value, exponent := float64(n)/unit, 0
	for ; value >= unit && exponent < 4; exponent++ {
		value /= unit
	}
	return fmt.Sprintf("%.1f %ciB", value, "KMGTP"[exponent])
}
