//go:build linux

package sim_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"code.wake.dev/wake/pkg/subjects"
	"code.wake.dev/wake/pkg/wire"
)

// maxWait is the longest time between two faults.
const maxWait = 15 * time.Second

// disturb asks for runs and lets faults happen, as the seed decides. When it
// returns, nothing disturbs any more.
func (w *world) disturb() {
	faults := w.choose()
	runs := 1 + w.rng.IntN(4)
	calmness := pick(w.rng, maxWait, maxWait/4, maxWait/20)
	for range 5 + w.rng.IntN(40) {
		switch k := w.rng.IntN(6); {
		case len(w.runs) == 0, k == 0 && len(w.runs) < runs:
			w.submit()
		case k <= 2:
			w.commandAtRandom()
		default:
			pick(w.rng, faults...)(w)
		}
		w.wait(calmness)
	}
	w.heal()
}

// wait lets some time pass, mostly little.
func (w *world) wait(most time.Duration) {
	d := time.Duration(w.rng.ExpFloat64() * float64(most) / 5)
	<-time.After(min(d, most))
}

// duration draws a time up to most, mostly less.
func duration(rng *rand.Rand, most time.Duration) time.Duration {
	return min(time.Duration(rng.ExpFloat64()*float64(most)/4), most)
}

// choose draws which faults may happen in this world: with all of them in each, few
// would be alone.
func (w *world) choose() []func(*world) {
	all := []func(*world){
		(*world).crash, (*world).crash, (*world).crashAtPublish, (*world).crashAtPublish, (*world).crashAtPublish, (*world).terminate,
		(*world).loseAnswers, (*world).loseAnswers, (*world).stall, (*world).stall, (*world).cut, (*world).slow,
		(*world).restartServer, (*world).fill, (*world).dropSession, (*world).resetConsumer, (*world).poison, (*world).upset, (*world).crashAtSink,
		(*world).killKeeper, (*world).relay, (*world).intrude, (*world).tear, (*world).replace,
	}
	if w.keepers {
		return []func(*world){
			(*world).crash, (*world).crashAtPublish, (*world).crashAtPublish, (*world).terminate, (*world).stall, (*world).cut, (*world).relay, (*world).intrude,
			(*world).tear, (*world).tear, (*world).replace,
		}
	}
	w.rng.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	return all[:1+w.rng.IntN(len(all))]
}

// heal ends what faults are still there.
func (w *world) heal() {
	w.web.heal()
	for _, p := range w.processes {
		if l := p.current(); l != nil {
			l.link.set(func(k *link) { k.cut, k.deaf, k.stalled, k.delay, k.countdown = false, false, false, 0, 0 })
			if w.healing[l] {
				l.link.hangUp()
			}
		}
	}
}

// victim draws a process that runs; runners are hit most often.
func (w *world) victim() *life {
	all := w.processes
	if w.keepers {
		all = slices.DeleteFunc(slices.Clone(all), func(p *process) bool { return p.orphan == 0 })
	}
	return pick(w.rng, all...).current()
}

func (w *world) crash() {
	l := w.victim()
	if l == nil {
		return
	}
	delay := duration(w.rng, pick(w.rng, 10*time.Second, 2*time.Minute))
	w.fault("crash", "%s for %s", l.p.name, delay)
	l.p.setDelay(delay)
	l.die()
}

// crashAtPublish lets a process die of one of its next publishes.
func (w *world) crashAtPublish() {
	l := w.victim()
	if l == nil {
		return
	}
	n, before, delay := 1+w.rng.IntN(60), w.rng.IntN(2) == 0, duration(w.rng, time.Minute)
	w.fault("crash at a publish", "%s at its next %d., before %t, for %s", l.p.name, n, before, delay)
	l.p.setDelay(delay)
	l.link.set(func(k *link) { k.countdown, k.before = n, before })
}

func (w *world) terminate() {
	l := w.victim()
	if l == nil {
		return
	}
	delay := duration(w.rng, time.Minute)
	w.fault("terminate", "%s for %s", l.p.name, delay)
	l.p.setDelay(delay)
	l.stop()
}

// loseAnswers loses what the server answers, and then the connection.
func (w *world) loseAnswers() {
	l := w.victim()
	if l == nil {
		return
	}
	d := duration(w.rng, 20*time.Second)
	w.fault("lost answers", "%s for %s", l.p.name, d)
	w.during(l, d, func(k *link) { k.deaf = true }, func(k *link) { k.deaf = false }, true)
}

// stall stops everything between a process and the server, for longer than a lease
// lives, or for less.
func (w *world) stall() {
	l := w.victim()
	if l == nil {
		return
	}
	d := duration(w.rng, 2*time.Minute)
	w.fault("stall", "%s for %s", l.p.name, d)
	w.during(l, d, func(k *link) { k.stalled = true }, func(k *link) { k.stalled = false }, false)
}

// cut ends the connections of a process and lets none begin.
func (w *world) cut() {
	l := w.victim()
	if l == nil {
		return
	}
	d := duration(w.rng, 2*time.Minute)
	w.fault("partition", "%s for %s", l.p.name, d)
	w.during(l, d, func(k *link) { k.cut = true }, func(k *link) { k.cut = false }, false)
	l.link.hangUp()
}

func (w *world) slow() {
	l := w.victim()
	if l == nil {
		return
	}
	d, delay := duration(w.rng, time.Minute), time.Duration(w.rng.IntN(3000))*time.Millisecond
	w.fault("slow answers", "%s by %s for %s", l.p.name, delay, d)
	w.during(l, d, func(k *link) { k.delay = delay }, func(k *link) { k.delay = 0 }, false)
}

// during changes a link for a while.
func (w *world) during(l *life, d time.Duration, begin, end func(*link), hangUp bool) {
	if hangUp {
		w.healing[l] = true
	}
	l.link.set(begin)
	w.tasks.Go(func() {
		select {
		case <-time.After(d):
		case <-w.ctx.Done():
		}
		l.link.set(end)
		if hangUp {
			l.link.hangUp()
		}
	})
}

// restartServer ends the server and starts it again. Nobody is connected when it
// ends: a server that is told to end sleeps under a lock, which stops the time of the
// bubble for ever if anybody asks for a consumer meanwhile.
func (w *world) restartServer() {
	d := duration(w.rng, time.Minute)
	w.fault("server restart", "for %s", d)
	var lives []*life
	for _, p := range w.processes {
		if l := p.current(); l != nil {
			lives = append(lives, l)
			l.link.set(func(k *link) { k.down = true })
			l.link.hangUp()
		}
	}
	<-time.After(time.Millisecond) // what the server has begun is done
	w.server.Stop()
	<-time.After(d)
	w.server.Start(w.t)
	for _, l := range lives {
		l.link.set(func(k *link) { k.down = false })
	}
}

// fill leaves no room in the stream of events for a while.
func (w *world) fill() {
	d := duration(w.rng, time.Minute)
	room := int64(w.rng.IntN(20_000))
	w.fault("full stream", "%d bytes are left, for %s", room, d)
	w.limit(func(s jetstream.StreamInfo) int64 { return int64(s.State.Bytes) + room }) // far below
	<-time.After(d)
	w.limit(func(jetstream.StreamInfo) int64 { return -1 })
}

// limit sets the maximum size of the stream of events.
func (w *world) limit(size func(jetstream.StreamInfo) int64) {
	for w.ctx.Err() == nil {
		ctx, cancel := context.WithTimeout(w.ctx, 5*time.Second)
		s, err := w.js.Stream(ctx, w.names.EventsStream())
		if err == nil {
			c := s.CachedInfo().Config
			c.MaxBytes = size(*s.CachedInfo())
			_, err = w.js.UpdateStream(ctx, c)
		}
		cancel()
		if err == nil {
			return
		}
		w.note("client", "limit the stream: %v", err)
		<-time.After(time.Second)
	}
}

// dropSession takes out the session of a runner, which goes on.
func (w *world) dropSession() {
	ctx, cancel := context.WithTimeout(w.ctx, 5*time.Second)
	defer cancel()
	kv, err := w.js.KeyValue(ctx, w.names.LeasesBucket())
	if err != nil {
		return
	}
	keys, err := kv.Keys(ctx)
	if err != nil {
		return
	}
	slices.Sort(keys)
	key := pick(w.rng, keys...)
	w.fault("session dropped", "%s", key)
	if w.rng.IntN(2) == 0 {
		err = kv.Delete(ctx, key)
	} else {
		err = kv.Purge(ctx, key)
	}
	if err != nil {
		w.note("client", "drop a session: %v", err)
	}
}

// resetConsumer takes the durable consumer of a service somewhere else.
func (w *world) resetConsumer() {
	ctx, cancel := context.WithTimeout(w.ctx, 5*time.Second)
	defer cancel()
	s, err := w.js.Stream(ctx, w.names.EventsStream())
	if err != nil {
		return
	}
	name := pick(w.rng, subjects.RecorderConsumer, subjects.SnapshotterConsumer, subjects.AlerterConsumer)
	to := 1 + w.rng.Uint64N(s.CachedInfo().State.LastSeq+1)
	w.fault("consumer reset", "%s to %d", name, to)
	subject := fmt.Sprintf("$JS.API.CONSUMER.RESET.%s.%s", w.names.EventsStream(), name)
	m, err := w.js.Conn().RequestMsgWithContext(ctx, &nats.Msg{Subject: subject, Data: fmt.Appendf(nil, `{"seq":%d}`, to)})
	if err != nil {
		w.note("client", "reset: %v", err)
		return
	}
	w.note("client", "reset: %.200s", m.Data)
}

// poison stores what nobody can use, where wake reads.
func (w *world) poison() {
	data := []byte(pick(w.rng, "\xc1", "", "{", "\x81\xa1v\x01", hostile(w.rng)))
	subject := pick(w.rng, w.names.Event("poisoned", "n", pick(w.rng, "flow", "agent", "tool", "text", "delta")), w.names.QueueRun(),
		w.names.QueueNode("default"), w.names.Command(w.someRun()), w.names.Command("nobody"))
	w.fault("poison", "on %s: %.20q", subject, data)
	w.publish("poison", subject, data, func(uint64) {})
}

func (w *world) someRun() string {
	if len(w.runs) == 0 || w.rng.IntN(10) == 0 {
		return pick(w.rng, "nobody", "_", "run1.n")
	}
	return pick(w.rng, w.runs...)
}

// commandAtRandom sends a command that may or may not make sense.
func (w *world) commandAtRandom() {
	run := w.someRun()
	c := wire.Command{Type: pick(w.rng, "send", "pause", "resume", "resume", "abort", "bookmark", "approve", "deny", "bookmark", "fork", "fork", "reply", "steer", "dance")}
	node := pick(w.rng, w.someNodes(run)...)
	switch c.Type {
	case "abort":
		if w.rng.IntN(3) > 0 {
			c.Resumable = true
		}
	case "send", "steer":
		c.NodeID, c.Message = pick(w.rng, node, ""), "message "+hostile(w.rng)
		c.Interrupt = w.rng.IntN(3) == 0
	case "reply":
		c.NodeID, c.PromptID, c.Content = node, pick(w.rng, "prompt-1", "prompt-2", "x"), wire.RawString("perhaps")
	case "approve", "deny":
		c.NodeID, c.CallID = node, "nothing-0"
	case "bookmark":
		c.Label, c.Force = pick(w.rng, "here", "there"), w.rng.IntN(2) == 0
		c.At = pick(w.rng, "", "", "sfp-1", "there", fmt.Sprint(1+w.rng.IntN(60)))
	case "fork":
		c.At = pick(w.rng, "", "", "sfp-1", "sfp-2", "sfp-3", "here", "there", fmt.Sprint(1+w.rng.IntN(60)))
		if w.rng.IntN(2) == 0 {
			c.NewID = fmt.Sprintf("fork%d", w.rng.IntN(4))
			w.runs = append(w.runs, c.NewID)
			w.forks[c.NewID] = true
		}
	case "resume":
		c.Strategy = pick(w.rng, "", "crash", "manual")
	}
	if w.rng.IntN(5) == 0 && w.asked > 0 {
		c.ID = fmt.Sprintf("c%d", 1+w.rng.IntN(w.asked)) // again, or another with its id
	}
	w.command(run, c)
}

// someNodes returns ids that nodes may have.
func (w *world) someNodes(string) []string {
	var ids []string
	for salt := range 5 {
		for i := range 3 {
			id := fmt.Sprintf("n%c%d", 'a'+salt, i)
			ids = append(ids, id, limited+id)
		}
	}
	return ids
}
