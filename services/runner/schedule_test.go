package runner_test

import (
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/flow"
	"code.wake.dev/wake/internal/natstest"
	"code.wake.dev/wake/internal/schedule"
	"code.wake.dev/wake/internal/seal"
	"code.wake.dev/wake/pkg/subjects"
	"code.wake.dev/wake/pkg/wire"
)

const scheduled = `
name: nightly
nodes: [{id: a, type: agent, input: {provider: claude, prompt: hello}}]
`

// addSchedule adds a schedule of every two minutes.
func (b *bench) addSchedule(edits ...func(*schedule.Schedule)) *schedule.Store {
	b.t.Helper()
	def, err := flow.Parse("test.yaml", []byte(scheduled))
	if err != nil {
		b.t.Fatal(err)
	}
	store, err := schedule.Open(b.t.Context(), b.log.JetStream(), subjects.Default, nil)
	if err != nil {
		b.t.Fatal(err)
	}
	s := schedule.Schedule{Name: "often", Cron: "*/2 * * * *", Since: time.Now().UnixMilli(), Request: wire.RunRequest{V: wire.Version, Definition: def.Raw(), By: "somebody"}}
	for _, edit := range edits {
		edit(&s)
	}
	if err := store.Add(b.t.Context(), s); err != nil {
		b.t.Fatal(err)
	}
	return store
}

// begun are the runs that have begun, and how often the agents of each were started.
func (b *bench) begun(p *scripted) (runs []string, starts int) {
	b.t.Helper()
	for e, err := range b.log.Read(b.t.Context(), eventlog.Query{}) {
		if err != nil {
			b.t.Fatal(err)
		}
		if e.Event.Type() == wire.TypeFlowStart {
			runs = append(runs, e.RunID)
		}
	}
	slices.Sort(runs)
	return runs, len(p.started())
}

// Three runners are there when a run is due, and one of them is killed: before it asks for the run, or behind that and before it
// has noted it. The run begins once, and so does the next one.
func TestScheduleFiresOnce(t *testing.T) {
	for _, moment := range []string{"wake.queue.run", "$KV.WAKE_STATE.schedule", ""} {
		t.Run(strings.Trim(moment, "$."), func(t *testing.T) {
			natstest.Bubble(t, func(t *testing.T) {
				b := newBench(t)
				p := &scripted{say: echo}
				processes := []*process{b.process("one", p), b.process("two", p), b.process("three", p)}
				b.addSchedule()
				<-time.After(time.Minute)
				cut := make(chan *process, len(processes))
				var one atomic.Bool
				for _, each := range processes {
					if moment == "" {
						break
					}
					each.gate.before(moment, func() { // the others may have done it by the time that one comes to it
						if one.CompareAndSwap(false, true) {
							each.gate.close()
							cut <- each
						}
					})
				}
				select {
				case first := <-cut:
					first.kill()
				case <-time.After(90 * time.Second):
					if moment != "" {
						t.Errorf("%s was never sent", moment)
					}
				}
				<-time.After(2*time.Minute + 30*time.Second)
				runs, starts := b.begun(p)
				if want := []string{"often-20000101t0002z", "often-20000101t0004z"}; !slices.Equal(runs, want) {
					t.Errorf("runs %v, want %v", runs, want)
				}
				if starts != 2 {
					t.Errorf("%d agents were started", starts)
				}
				for _, run := range runs {
					state, _ := b.ended(run)
					if state.Labels[schedule.Label] != "often" || state.StartedBy != "somebody" {
						t.Errorf("labels %v, by %q", state.Labels, state.StartedBy)
					}
				}
			})
		})
	}
}

// What was due while no runner was there is caught up with by the schedule's rule, also when the server has forgotten which requests
// it has had.
func TestScheduleCatchesUp(t *testing.T) {
	for _, tt := range []struct {
		rule schedule.CatchUp
		want []string
	}{
		{schedule.CatchLast, []string{"often-20000101t0010z", "often-20000101t0012z"}},
		{schedule.CatchNone, []string{"often-20000101t0012z"}},
		{schedule.CatchAll, []string{"often-20000101t0002z", "often-20000101t0004z", "often-20000101t0006z", "often-20000101t0008z", "often-20000101t0010z", "often-20000101t0012z"}},
	} {
		t.Run("rule "+string(tt.rule), func(t *testing.T) {
			natstest.Bubble(t, func(t *testing.T) {
				b := newBench(t)
				p := &scripted{say: echo}
				store := b.addSchedule(func(s *schedule.Schedule) { s.CatchUp = tt.rule })
				<-time.After(11*time.Minute + 10*time.Second)
				stop := b.runner("one", p)
				<-time.After(20 * time.Second)
				if e, err := store.Get(t.Context(), "often"); err != nil || (e.Asked == 0) != (tt.rule == schedule.CatchNone) {
					t.Errorf("the last run that was asked for is of %d, %v", e.Asked, err)
				}
				<-time.After(time.Minute)
				// Paused, nothing begins, and what was due meanwhile isn't caught up with.
				e, err := store.Get(t.Context(), "often")
				if err != nil {
					t.Fatal(err)
				}
				e.Paused = true
				if err := store.Update(t.Context(), e); err != nil {
					t.Fatal(err)
				}
				<-time.After(3 * time.Minute)
				if runs, starts := b.begun(p); !slices.Equal(runs, tt.want) || starts != len(tt.want) {
					t.Errorf("runs %v, want %v; %d agents", runs, tt.want, starts)
				}
				stop()
			})
		})
	}
}

// A clock was ten hours ahead, and has been put back: what it has settled is due again when its time comes, and a run that has begun
// already isn't begun twice.
func TestScheduleOfClockAhead(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		p := &scripted{say: echo}
		ahead := func(s *schedule.Schedule) { s.Fired = time.Now().Add(10 * time.Hour).UnixMilli() }
		store := b.addSchedule(ahead)
		stop := b.runner("one", p)
		want := []string{"often-20000101t0002z", "often-20000101t0004z"}
		for range 2 {
			<-time.After(5*time.Minute + 10*time.Second)
			if runs, starts := b.begun(p); !slices.Equal(runs, want) || starts != len(want) {
				t.Errorf("runs %v, want %v; %d agents", runs, want, starts)
			}
			e, err := store.Get(t.Context(), "often")
			if err != nil {
				t.Fatal(err)
			}
			e.Fired = time.Now().Add(-8 * time.Minute).UnixMilli()
			e.CatchUp = schedule.CatchAll
			if err := store.Update(t.Context(), e); err != nil {
				t.Fatal(err)
			}
			want = append(want, "often-20000101t0006z", "often-20000101t0008z", "often-20000101t0010z")
		}
		stop()
	})
}

// The runner can't look up the run of one schedule, as where the key of its state is lost: that schedule waits until the runner can, and
// all other schedules begin their runs in time.
func TestScheduleBesideFailingOne(t *testing.T) {
	natstest.Bubble(t, func(t *testing.T) {
		b := newBench(t)
		p := &scripted{say: echo}
		b.addSchedule(func(s *schedule.Schedule) { s.CatchUp = schedule.CatchAll })
		b.addSchedule(func(s *schedule.Schedule) { s.Name = "other" })
		lostKeys, err := seal.Parse([]byte("k1 " + strings.Repeat("A", 43) + "="))
		if err != nil {
			t.Fatal(err)
		}
		lost, err := lostKeys.Value("elsewhere", []byte("state"))
		if err != nil {
			t.Fatal(err)
		}
		states, err := b.log.JetStream().KeyValue(t.Context(), subjects.Default.SnapshotsBucket())
		if err != nil {
			t.Fatal(err)
		}
		key := subjects.Default.SnapshotKey("often-20000101t0002z")
		if _, err := states.Put(t.Context(), key, lost); err != nil {
			t.Fatal(err)
		}
		stop := b.runner("one", p)
		defer stop()
		<-time.After(4*time.Minute + 5*time.Second)
		if runs, starts := b.begun(p); !slices.Equal(runs, []string{"other-20000101t0002z", "other-20000101t0004z"}) || starts != 2 {
			t.Errorf("runs %v, %d agents", runs, starts)
		}
		if err := states.Delete(t.Context(), key); err != nil {
			t.Fatal(err)
		}
		<-time.After(time.Minute)
		if runs, _ := b.begun(p); !slices.Contains(runs, "often-20000101t0002z") {
			t.Errorf("runs %v: what can be looked up again has not begun", runs)
		}
	})
}
