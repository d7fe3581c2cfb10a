//go:build kill

package kill_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"code.wake.dev/wake/internal/eventlog"
	"code.wake.dev/wake/internal/session"
	"code.wake.dev/wake/pkg/subjects"
	"code.wake.dev/wake/pkg/wire"
	"code.wake.dev/wake/test/lab"
)

// player writes a session file as Claude Code does: lines, some of them without a uuid, in pieces, and now and then anew.
type player struct {
	id, file string
	lines    []string // that stand in the file
	next     int
	random   *rand.Rand
}

func (p *player) line() string {
	p.next++
	if p.random.IntN(3) == 0 {
		return fmt.Sprintf(`{"type":"last-prompt","lastPrompt":"%d","sessionId":%q}`, p.next/2, p.id)
	}
	return fmt.Sprintf(`{"type":"user","uuid":"00000000-0000-4000-8000-%012d","sessionId":%q,"cwd":%q,"timestamp":%q,"message":{"role":"user","content":"word %d of %s"}}`,
		p.next, p.id, filepath.Dir(p.file), time.Now().UTC().Format(time.RFC3339Nano), p.next, p.id)
}

// play writes until ctx ends.
func (p *player) play(ctx context.Context) error {
	if err := os.MkdirAll(filepath.Dir(p.file), 0o700); err != nil {
		return err
	}
	for ctx.Err() == nil {
		if p.random.IntN(200) == 0 && len(p.lines) > 10 { // it takes a line away, and writes the rest anew
			at := p.random.IntN(len(p.lines))
			p.lines = slices.Delete(p.lines, at, at+1)
			if err := os.WriteFile(p.file+".new", []byte(strings.Join(p.lines, "\n")+"\n"), 0o600); err != nil {
				return err
			}
			if err := os.Rename(p.file+".new", p.file); err != nil {
				return err
			}
		}
		var text strings.Builder
		for range 1 + p.random.IntN(4) {
			p.lines = append(p.lines, p.line())
			text.WriteString(p.lines[len(p.lines)-1] + "\n")
		}
		cut := p.random.IntN(text.Len())
		for _, piece := range []string{text.String()[:cut], text.String()[cut:]} {
			if err := p.add(piece); err != nil {
				return err
			}
			<-time.After(time.Duration(p.random.IntN(30)) * time.Millisecond)
		}
	}
	return nil
}

func (p *player) add(text string) error {
	f, err := os.OpenFile(p.file, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	if err != nil {
		return err
	}
	return f.Close()
}

// Five sessions in three projects are watched by `wake up --watch`, which is killed all the time: in the end the log has each of their
// lines once, told once.
func TestWatchedThroughKills(t *testing.T) {
	p, err := build()
	if err != nil {
		t.Fatal(err)
	}
	l := &bench{lab.Empty(t, lab.Config{Programs: p, TTL: 5 * time.Second, Limit: 15 * time.Minute, Seed: *seedFlag, Keep: *keepFlag})}
	config := filepath.Join(l.Dir, "settings")
	l.AgentEnv = []string{"CLAUDE_CONFIG_DIR=" + config}
	ctx, stop := context.WithCancel(l.Ctx)
	defer stop()
	var playing sync.WaitGroup
	defer playing.Wait()
	var players []*player
	for n := range 5 {
		id := fmt.Sprintf("5e551011-0000-4000-8000-%012d", n)
		one := &player{id: id, file: filepath.Join(config, "projects", fmt.Sprintf("-src-%d", n%3), id+".jsonl"), random: rand.New(rand.NewPCG(l.Seed, uint64(n)))}
		players = append(players, one)
		playing.Go(func() {
			if err := one.play(ctx); err != nil {
				l.Errorf("the session %s: %v", id, err)
			}
		})
	}
	up := l.Up("up", "--watch", "--idle", "1s")
	for range *killsFlag {
		<-time.After(time.Duration(50+l.Rand.IntN(1500)) * time.Millisecond)
		l.Kill(up.Proc)
		l.Restart(up)
	}
	l.Ready(up)
	stop()
	playing.Wait()
	log := openLog(l)
	lines := 0
	for _, p := range players {
		want := map[string]bool{}
		index := session.NewIndex(nil)
		for _, line := range p.lines {
			want[index.Add([]byte(line)).Key] = true
		}
		lines += p.next
		l.Until("all of "+p.id+" is told", time.Minute, func() bool {
			told, doubles := toldOf(l, log, p.id)
			if len(doubles) > 0 {
				l.Fatalf("%s: told twice: %v", p.id, doubles)
			}
			for key := range want {
				if !told[key] {
					return false
				}
			}
			return len(told) == len(want)
		})
	}
	t.Logf("%d kills, %d lines of 5 sessions", *killsFlag, lines)
}

// openLog opens the log of the process that is up.
func openLog(l *bench) *eventlog.Log {
	l.Helper()
	b, err := os.ReadFile(filepath.Join(l.Dir, "up", "nats-url"))
	l.Must(err)
	nc, err := nats.Connect(strings.TrimSpace(string(b)))
	l.Must(err)
	l.Cleanup(nc.Close)
	log, err := eventlog.Open(l.Ctx, nc, eventlog.Options{Names: subjects.Default})
	l.Must(err)
	return log
}

// toldOf returns what the log has of a session: the keys of lines that were told and not removed, and what was told twice, as a line or as
// what a person says.
func toldOf(l *bench, log *eventlog.Log, id string) (told map[string]bool, doubles []string) {
	l.Helper()
	told = map[string]bool{}
	said := map[string]bool{}
	for e, err := range log.Read(l.Ctx, eventlog.Query{Run: id, Node: session.MainNode}) {
		l.Must(err)
		l.Must(e.Err)
		switch p := e.Event.Payload.(type) {
		case *wire.TranscriptRead:
			for _, key := range p.Lines {
				if told[key] {
					doubles = append(doubles, key)
				}
				told[key] = true
			}
			for _, key := range p.Removed {
				delete(told, key)
			}
		case *wire.UserMessage:
			text := p.Content
			if said[text] {
				doubles = append(doubles, text)
			}
			said[text] = true
		}
	}
	if len(told) > 100 && len(said) == 0 {
		l.Fatalf("%s: nobody says anything", id)
	}
	return told, doubles
}
