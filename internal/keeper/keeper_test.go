//go:build linux

package keeper_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"code.wake.dev/wake/internal/keeper"
	"code.wake.dev/wake/internal/process"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 2 && os.Args[1] == "role:intruder" {
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt) //nolint:forbidigo // of a program
		defer stop()
		_, err := keeper.Attach(ctx, keeper.Config{Dir: os.Args[2]})
		fmt.Println(err)
		return
	}
	goleak.VerifyTestMain(m)
}

func fences() []keeper.Fence {
	return []keeper.Fence{keeper.Namespace, keeper.UserNamespace, keeper.Watchdogs}
}

// each runs a test with each fence that this host allows.
func each(t *testing.T, f func(t *testing.T, fence keeper.Fence)) {
	for _, fence := range fences() {
		t.Run(string(fence), func(t *testing.T) {
			t.Parallel()
			if err := keeper.Try(t.Context(), fence, keeper.Groups{}); err != nil {
				if fence == keeper.Watchdogs {
					t.Fatal(err)
				}
				t.Skip(err)
			}
			f(t, fence)
		})
	}
}

type bench struct {
	*testing.T
	config keeper.Config
	keeper *keeper.Keeper
	marks  string // a folder
}

func open(t *testing.T, fence keeper.Fence, change ...func(*keeper.Config)) *bench {
	t.Helper()
	dir := t.TempDir()
	now := process.Uptime()
	b := &bench{T: t, marks: dir, config: keeper.Config{
		Dir: filepath.Join(dir, "keeper"), Fence: fence, Freeze: now + time.Minute, Kill: now + 2*time.Minute,
	}}
	for _, f := range change {
		f(&b.config)
	}
	k, err := keeper.Open(t.Context(), b.config)
	if err != nil {
		t.Fatal(err)
	}
	b.keeper = k
	t.Cleanup(func() { _ = b.keeper.Quit(0) })
	return b
}

func (b *bench) start(c process.Config) *process.Process {
	b.Helper()
	c.Env = append(c.Env, "PATH="+os.Getenv("PATH"), "DIR="+b.marks)
	p, err := b.keeper.Start(c)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = p.Close() })
	return p
}

func (b *bench) attach() {
	b.Helper()
	k, err := keeper.Attach(b.Context(), b.config)
	if err != nil {
		b.Fatal(err)
	}
	b.keeper = k
}

// mark returns the content of a file that a program writes.
func (b *bench) mark(name string) string {
	content, _ := os.ReadFile(filepath.Join(b.marks, name))
	return string(content)
}

func (b *bench) until(what string, f func() bool) {
	b.Helper()
	limit := time.After(20 * time.Second)
	for !f() {
		select {
		case <-limit:
			b.Fatal("not in time: " + what)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// rests reports whether a file has stopped growing.
func (b *bench) rests(name string) bool {
	before := b.mark(name)
	<-time.After(60 * time.Millisecond) // many ticks
	return b.mark(name) == before
}

// tree is a program whose children leave its session and their parents.
const tree = `echo $$ > $DIR/pid
tick() { while :; do echo x >> $DIR/$1; sleep 0.01; done; }
tick direct &
setsid sh -c 'while :; do echo x >> $DIR/session; sleep 0.01; done' &
(setsid sh -c '(setsid sh -c "while :; do echo x >> $DIR/daemon; sleep 0.01; done" &) ' &)
wait`

func (b *bench) tree() *process.Process {
	b.Helper()
	p := b.start(process.Config{Name: "agent", Argv: []string{"/bin/sh", "-c", tree}, Journal: true})
	b.until("all tick", func() bool { return b.mark("direct") != "" && b.mark("session") != "" && b.mark("daemon") != "" })
	return p
}

func (b *bench) still(f func(string) bool) bool {
	for _, name := range []string{"direct", "session", "daemon"} {
		if !f(name) {
			return false
		}
	}
	return true
}

func (b *bench) ended(why string) {
	b.Helper()
	b.until(why, func() bool { return b.still(b.rests) })
	for _, name := range []string{"direct", "session", "daemon"} {
		if !b.rests(name) {
			b.Errorf("%s goes on: %s", name, why)
		}
	}
}

func TestStart(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, fence keeper.Fence) {
		b := open(t, fence)
		p := b.start(process.Config{Argv: []string{"sh", "-c", "cat; echo bad >&2; exit 3"}})
		go func() {
			_, _ = io.WriteString(p.Stdin, "good")
			_ = p.Stdin.Close()
		}()
		errs := make(chan string)
		go func() {
			b, _ := io.ReadAll(p.Stderr)
			errs <- string(b)
		}()
		out, err := io.ReadAll(p.Stdout)
		if err != nil || string(out) != "good" || <-errs != "bad\n" {
			t.Errorf("stdout %q, %v", out, err)
		}
		if exit, err := p.Wait(t.Context()); err != nil || exit.Code != 3 {
			t.Errorf("exit %+v, %v", exit, err)
		}
		if p.Pid() == 0 {
			t.Error("no pid")
		}
		if _, err := b.keeper.Start(process.Config{Argv: []string{"no-such-program"}}); err == nil || !strings.Contains(err.Error(), "not found") {
			t.Error(err)
		}
		k := b.start(process.Config{Argv: []string{"sh", "-c", "echo last words >&2; kill -9 $$"}, KeepStderr: true})
		if exit, _ := k.Wait(t.Context()); exit.Signal != "KILL" || k.End(0) != nil || k.Words() != "last words\n" {
			t.Errorf("exit %+v, words %q", exit, k.Words())
		}
	})
}

// TestSignals starts a program in a keeper: it ignores and blocks the same signals as any.
func TestSignals(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, fence keeper.Fence) {
		c := process.Config{KeepStderr: true, Env: []string{"PATH=" + os.Getenv("PATH")}, Argv: []string{"grep", "-E", "^Sig(Ign|Blk)", "/proc/self/status"}}
		direct, err := process.Start(c)
		if err != nil {
			t.Fatal(err)
		}
		want, _ := io.ReadAll(direct.Stdout)
		_, _ = direct.End(0), direct.Close()
		p := open(t, fence).start(c)
		out, err := io.ReadAll(p.Stdout)
		if err != nil || string(out) != string(want) || len(out) == 0 {
			t.Errorf("%s, %v; otherwise %s", out, err, want)
		}
	})
}

// said collects the frames of a program until its end.
func said(p *process.Process) (text string, lives int) {
	for f := range p.Frames {
		switch f.Direction {
		case process.Live:
			text += "|"
			lives++
		case process.In:
			text += "<" + string(f.Data)
		case process.Out:
			text += ">" + string(f.Data)
		case process.Err:
			text += "!" + string(f.Data)
		}
	}
	return text, lives
}

// TestAttach leaves a program at work and attaches to it: what was said since the
// last resting point comes again, and what it says after that.
func TestAttach(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, fence keeper.Fence) {
		b := open(t, fence)
		talk := process.Config{Name: "agent", Argv: []string{"sh", "-c", "while read x; do echo got $x; done"}, Journal: true}
		p := b.start(talk)
		next := func() process.Frame {
			for f := range p.Frames {
				if f.Direction == process.Out {
					return f
				}
			}
			return process.Frame{}
		}
		pid := p.Pid()
		_, _ = io.WriteString(p.Stdin, "one\n")
		f := next()
		p.Rested(process.Rest{Offset: f.Offset + uint64(len(f.Data)), State: []byte("one was said")})
		_, _ = io.WriteString(p.Stdin, "two\n")
		next()
		if !p.Leave() {
			t.Fatal("it doesn't live on")
		}
		for range p.Frames {
			t.Error("a frame after it was left")
		}
		b.attach()
		if !b.keeper.Has("agent") || b.keeper.Has("other") {
			t.Error("it doesn't know its programs")
		}
		p = b.start(talk)
		if !p.Attached || p.Pid() != pid || string(p.Last.State) != "one was said" {
			t.Errorf("attached %t, pid %d of %d, rest %q", p.Attached, p.Pid(), pid, p.Last.State)
		}
		var replayed strings.Builder
		for f := range p.Frames {
			if f.Direction == process.Live {
				break
			}
			replayed.Write(f.Data)
		}
		_, _ = io.WriteString(p.Stdin, "three\n")
		_ = p.Stdin.Close()
		if after, _ := said(p); replayed.String() != "two\ngot two\n" || after != ">got three\n" {
			t.Errorf("%q, %q", replayed.String(), after)
		}
		if exit, err := p.Wait(t.Context()); err != nil || exit.Code != 0 {
			t.Errorf("exit %+v, %v", exit, err)
		}
		// What has ended is there, too.
		b.keeper.Leave()
		b.attach()
		p = b.start(talk)
		if text, lives := said(p); text != "<two\n>got two\n<three\n>got three\n|" || lives != 1 {
			t.Errorf("%q", text)
		}
		if exit, err := p.Wait(t.Context()); err != nil || exit.Code != 0 {
			t.Errorf("exit %+v, %v", exit, err)
		}
	})
}

func TestOneAttaches(t *testing.T) {
	t.Parallel()
	b := open(t, keeper.Watchdogs)
	if _, err := keeper.Attach(t.Context(), b.config); err == nil || !strings.Contains(err.Error(), "attached") {
		t.Error(err)
	}
	b.keeper.Leave()
	name := filepath.Join(b.config.Dir, "secret")
	secret, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []string{"wrong", string(secret)} {
		if err := os.WriteFile(name, []byte(s), 0o600); err != nil {
			t.Fatal(err)
		}
		if s != "wrong" {
			b.attach()
		} else if _, err := keeper.Attach(t.Context(), b.config); err == nil || !strings.Contains(err.Error(), "secret") {
			t.Error(err)
		}
	}
}

// TestOtherProtocol meets a keeper that speaks another protocol: it lives for a process that only looks, and
// is ended by a runner that comes to attach, which reads what it has left.
func TestOtherProtocol(t *testing.T) {
	b := open(t, keeper.Watchdogs)
	p := b.start(process.Config{Name: "agent", Journal: true, Argv: []string{"sh", "-c", "echo word; sleep 100"}})
	<-p.Frames
	pid := b.keeper.Pid()
	b.keeper.Leave()
	keeper.SpeakOther()
	defer keeper.SpeakOther()
	if _, err := keeper.Attach(t.Context(), b.config); !errors.Is(err, keeper.ErrGone) {
		t.Fatal(err)
	}
	b.until("the keeper is gone, and waited for", func() bool { return syscall.Kill(pid, 0) != nil })
	tail, err := keeper.OpenTail(b.config)
	if err != nil {
		t.Fatal(err)
	}
	if p, err = tail.Start(process.Config{Name: "agent", Journal: true}); err != nil {
		t.Fatal(err)
	}
	if text, _ := said(p); text != ">word\n|" {
		t.Errorf("it said %q", text)
	}
}

// TestIntruder has a program of the tree ask for the keeper's ear.
func TestIntruder(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, fence keeper.Fence) {
		b := open(t, fence)
		p := b.start(process.Config{Name: "agent", Argv: []string{os.Args[0], "role:intruder", b.config.Dir}})
		out, _ := io.ReadAll(p.Stdout)
		if !strings.Contains(string(out), "own tree") {
			t.Errorf("%s", out)
		}
	})
}

// TestDeadline lets the deadline pass: nothing of the tree runs, until it is extended.
func TestDeadline(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, fence keeper.Fence) {
		b := open(t, fence)
		p := b.tree()
		news := make(chan keeper.State, 10)
		b.keeper.Watch(func(s keeper.State) { news <- s })
		now := process.Uptime()
		begun := now
		if err := b.keeper.Extend(now+100*time.Millisecond, now+time.Minute); err != nil {
			t.Fatal(err)
		}
		if s := <-news; !s.Frozen {
			t.Error("it isn't frozen")
		}
		if passed := process.Uptime(); passed < now+100*time.Millisecond {
			t.Errorf("frozen after %s", passed-now)
		}
		b.ended("frozen")
		now = process.Uptime()
		if err := b.keeper.Extend(now+time.Minute, now+time.Minute); err != nil {
			t.Fatal(err)
		}
		if s := <-news; s.Frozen {
			t.Error("it is frozen")
		}
		b.until("it goes on", func() bool { return !b.rests("daemon") && !b.rests("session") && !b.rests("direct") })
		thawed := process.Uptime() // by then
		if err := p.End(0); err != nil {
			t.Error(err)
		}
		b.ended("ended")
		b.keeper.Leave()
		b.until("it was left", func() bool {
			k, err := keeper.Attach(t.Context(), b.config)
			if err == nil {
				b.keeper = k
			}
			return err == nil
		})
		if stood := b.keeper.Stood(); stood <= 0 || stood > thawed-begun {
			t.Errorf("it says that it was frozen for %s of %s", stood, thawed-begun)
		}
	})
}

// guard returns the process id of the keeper's guard.
func (b *bench) guard() int {
	b.Helper()
	entries, err := process.Table()
	if err != nil {
		b.Fatal(err)
	}
	for _, e := range entries {
		if e.Parent == b.keeper.Pid() {
			return e.Pid
		}
	}
	b.Fatal("the keeper has no guard")
	return 0
}

// TestOrphans kills both watchdogs at once, which what the agent has started survives: the next start of the same home
// ends it, and no other home's.
func TestOrphans(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	b := open(t, keeper.Watchdogs, func(c *keeper.Config) { c.Home = home })
	b.tree()
	guard := b.guard()
	for _, pid := range []int{guard, b.keeper.Pid()} {
		_ = syscall.Kill(pid, syscall.SIGSTOP)
	}
	for _, pid := range []int{guard, b.keeper.Pid()} {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	<-b.keeper.Gone()
	if n, err := process.EndOrphans(t.Context(), home+"-other", 0); n != 0 || err != nil {
		t.Errorf("another home ends %d, %v", n, err)
	}
	if b.rests("daemon") || b.rests("session") {
		t.Error("the tree is gone: nothing is tested")
	}
	if n, err := process.EndOrphans(t.Context(), home, 0); n == 0 || err != nil {
		t.Errorf("%d ended, %v", n, err)
	}
	b.ended("orphans")
}

// TestKill kills or stops keeper and guard, in any way that leaves the fence a chance: the
// tree ends.
func TestKill(t *testing.T) {
	t.Parallel()
	for name, do := range map[string]func(b *bench){
		"keeper killed":  func(b *bench) { _ = syscall.Kill(b.keeper.Pid(), syscall.SIGKILL) },
		"guard killed":   func(b *bench) { _ = syscall.Kill(b.guard(), syscall.SIGKILL) },
		"keeper told":    func(b *bench) { _ = syscall.Kill(b.keeper.Pid(), syscall.SIGTERM) },
		"keeper stopped": func(b *bench) { _ = syscall.Kill(b.keeper.Pid(), syscall.SIGSTOP) },
		"guard stopped":  func(b *bench) { _ = syscall.Kill(b.guard(), syscall.SIGSTOP) },
		"both stopped": func(b *bench) {
			if b.config.Fence == keeper.Watchdogs {
				_ = syscall.Kill(b.keeper.Pid(), syscall.SIGKILL)
				return // it is known to survive that
			}
			g := b.guard()
			_ = syscall.Kill(b.keeper.Pid(), syscall.SIGSTOP)
			_ = syscall.Kill(g, syscall.SIGSTOP)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			each(t, func(t *testing.T, fence keeper.Fence) {
				b := open(t, fence)
				p := b.tree()
				now := process.Uptime()
				_ = b.keeper.Extend(now+500*time.Millisecond, now+time.Second)
				_, _ = b.keeper.Start(process.Config{Name: "none"}) // it has the deadline when it answers
				do(b)
				b.ended(name)
				go func() {
					for range p.Frames {
						continue
					}
				}()
				if name == "keeper told" || name == "keeper killed" {
					<-b.keeper.Gone()
				}
				_ = syscall.Kill(b.keeper.Pid(), syscall.SIGCONT)
			})
		})
	}
}

// TestStartAfterGuard starts a program when the guard has just died, before the keeper has ended: its runner learns that the host is
// gone, which it begins anew, and not that the program can't be started.
func TestStartAfterGuard(t *testing.T) {
	t.Parallel()
	for range 10 {
		b := open(t, keeper.Watchdogs)
		if err := syscall.Kill(b.guard(), syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		if _, err := b.keeper.Start(process.Config{Name: "agent", Argv: []string{"true"}}); !errors.Is(err, process.ErrGone) {
			t.Errorf("%v", err)
		}
	}
}

// TestFreezeVfork freezes programs that start others all the time: a parent that waits for a child which
// is stopped before it has begun is frozen as well.
func TestFreezeVfork(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, fence keeper.Fence) {
		b := open(t, fence)
		b.start(process.Config{Name: "agent", KeepStderr: true, Argv: []string{"sh", "-c", "for i in 1 2 3 4 5 6 7 8; do (while :; do /bin/true; done) & done; wait"}})
		news := make(chan keeper.State, 100)
		b.keeper.Watch(func(s keeper.State) { news <- s })
		for range 20 {
			now := process.Uptime()
			_ = b.keeper.Extend(now+5*time.Millisecond, now+time.Minute)
			select {
			case s := <-news:
				if !s.Frozen {
					t.Fatal("it isn't frozen")
				}
			case <-b.keeper.Gone():
				t.Fatal("the tree was ended")
			}
			now = process.Uptime()
			_ = b.keeper.Extend(now+time.Minute, now+2*time.Minute)
			<-news
		}
	})
}

// TestOrphan leaves a tree that nobody comes back for.
func TestOrphan(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, fence keeper.Fence) {
		b := open(t, fence, func(c *keeper.Config) { c.Orphan = 200 * time.Millisecond })
		b.tree()
		now := process.Uptime()
		_ = b.keeper.Extend(now+100*time.Millisecond, now+time.Minute)
		pid := b.keeper.Pid()
		b.keeper.Leave()
		b.until("it is given up", func() bool { return errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) })
		b.ended("given up")
		if _, err := keeper.Attach(t.Context(), b.config); !errors.Is(err, keeper.ErrGone) {
			t.Error(err)
		}
	})
}

// TestFolderGone removes the folder of a keeper whose tree is frozen: nobody can come back to it.
func TestFolderGone(t *testing.T) {
	t.Parallel()
	b := open(t, keeper.Watchdogs)
	b.tree()
	now := process.Uptime()
	_ = b.keeper.Extend(now+100*time.Millisecond, now+time.Minute)
	pid := b.keeper.Pid()
	b.keeper.Leave()
	if err := os.RemoveAll(b.config.Dir); err != nil {
		t.Fatal(err)
	}
	b.until("it is given up", func() bool { return errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) })
	b.ended("given up")
}

// TestUnnamed leaves a program without a name: it is nobody's.
func TestUnnamed(t *testing.T) {
	t.Parallel()
	b := open(t, keeper.Watchdogs)
	b.start(process.Config{Argv: []string{"sh", "-c", "while :; do echo x >> $DIR/mark; sleep 0.01; done"}, KeepStderr: true})
	b.until("it ticks", func() bool { return b.mark("mark") != "" })
	b.keeper.Leave()
	b.until("it ends", func() bool { return b.rests("mark") })
	b.attach()
}

// TestFull fills the journal: the program waits until there is room.
func TestFull(t *testing.T) {
	t.Parallel()
	b := open(t, keeper.Watchdogs, func(c *keeper.Config) { c.Limit = 4 << 20 })
	news := make(chan keeper.State, 100)
	b.keeper.Watch(func(s keeper.State) { news <- s })
	p := b.start(process.Config{Name: "agent", Journal: true, Argv: []string{
		"sh", "-c", "head -c 10000000 /dev/zero; echo done > $DIR/mark",
	}})
	var read uint64
	for f := range p.Frames {
		if read += uint64(len(f.Data)); read > 3<<20 {
			break
		}
	}
	if s := <-news; s.Full == "" || b.mark("mark") != "" {
		t.Errorf("state %+v, mark %q", s, b.mark("mark"))
	}
	p.Rested(process.Rest{Offset: read})
	for f := range p.Frames {
		read += uint64(len(f.Data))
		p.Rested(process.Rest{Offset: read})
	}
	if read != 10_000_000 || b.mark("mark") != "done\n" {
		t.Errorf("%d bytes, mark %q", read, b.mark("mark"))
	}
}

// TestNoRoom starts a program on a disk that has no room for what the keeper writes of it: the runner learns that it was this.
func TestNoRoom(t *testing.T) {
	t.Parallel()
	b := open(t, keeper.Watchdogs)
	sum := sha256.Sum256([]byte("agent"))
	dir := filepath.Join(b.config.Dir, "program-"+hex.EncodeToString(sum[:8]))
	if err := errors.Join(os.Mkdir(dir, 0o700), os.Symlink("/dev/full", filepath.Join(dir, "name"))); err != nil {
		t.Fatal(err)
	}
	c := process.Config{Name: "agent", Journal: true, Argv: []string{"sh", "-c", "echo done > $DIR/mark"}}
	if _, err := b.keeper.Start(c); !process.IsFull(err) || !strings.Contains(err.Error(), "no space left") {
		t.Fatalf("on a full disk: %v", err)
	}
	for range b.start(c).Frames { // the folder is gone with what was in it: there is room
	}
	if got := b.mark("mark"); got != "done\n" {
		t.Errorf("mark %q", got)
	}
	if _, err := b.keeper.Start(process.Config{Argv: []string{"/nowhere"}}); err == nil || process.IsFull(err) {
		t.Errorf("a program that isn't there: %v", err)
	}
}

// TestLongPath opens a keeper whose socket's path is longer than a socket's address.
func TestLongPath(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), strings.Repeat("d", 200))
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	b := open(t, keeper.Watchdogs, func(c *keeper.Config) { c.Dir = filepath.Join(dir, "keeper") })
	b.keeper.Leave()
	b.attach()
}

// TestTail reads what keepers have left that were killed, with their program at work and after
// its end.
func TestTail(t *testing.T) {
	t.Parallel()
	key := []byte(strings.Repeat("k", 32))
	for name, end := range map[string]string{"at work": "sleep 100", "quit": "sleep 100", "ended": "exit 3"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := open(t, keeper.Watchdogs, func(c *keeper.Config) { c.Key = key })
			config := process.Config{Name: "agent", Journal: true, Argv: []string{"sh", "-c", "read x; echo $x; echo $x; " + end}}
			p := b.start(config)
			_, _ = io.WriteString(p.Stdin, "word\n")
			text := ""
			for f := range p.Frames {
				if f.Direction == process.Out { // what it was told may come, too, if that was before it was listened to
					text += string(f.Data)
				}
				if text == "word\nword\n" {
					break
				}
			}
			p.Rested(process.Rest{Offset: uint64(len("word\nword\n")), State: []byte("rest")})
			if end != "sleep 100" {
				<-p.Exited()
			}
			_ = p.Stdin.Close()
			_ = p.Close()
			b.until("the rest is stored", func() bool {
				found, _ := filepath.Glob(filepath.Join(b.config.Dir, "*", "rest"))
				return len(found) == 1
			})
			if name == "quit" {
				_ = b.keeper.Quit(0)
			} else {
				_ = syscall.Kill(b.keeper.Pid(), syscall.SIGKILL)
			}
			<-b.keeper.Gone()
			tail, err := keeper.OpenTail(b.config)
			if err != nil || !tail.Has("agent") || tail.Has("other") {
				t.Fatal(err)
			}
			if p, err = tail.Start(config); err != nil {
				t.Fatal(err)
			}
			if text, _ := said(p); !strings.HasSuffix(text, "word\n|") || string(p.Last.State) != "rest" {
				t.Errorf("%q, rest %q", text, p.Last.State)
			}
			exit, err := p.Wait(t.Context())
			if err != nil || exit.Lost != (end == "sleep 100") || !exit.Lost && exit.Code != 3 {
				t.Errorf("%+v, %v", exit, err)
			}
			_ = p.Close()
		})
	}
}

// TestQuitStopped shows that a keeper that a person has stopped doesn't hold up the process that ends it, and that its programs
// end with it.
func TestQuitStopped(t *testing.T) {
	each(t, func(t *testing.T, fence keeper.Fence) {
		b := open(t, fence)
		b.tree()
		if err := syscall.Kill(b.keeper.Pid(), syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		if err := b.keeper.Quit(0); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"direct", "session", "daemon"} {
			b.until(name+" has ended", func() bool { return b.rests(name) })
		}
	})
}

// TestForget shows that the journal of a program that has ended goes when no runner needs it, and its name is free for the one that
// attaches next; that of one at work stays.
func TestForget(t *testing.T) {
	b := open(t, keeper.Watchdogs)
	over := b.start(process.Config{Name: "call/1", Journal: true, Argv: []string{"/bin/sh", "-c", "echo one"}})
	for range over.Frames {
	}
	if err := over.End(0); err != nil {
		t.Fatal(err)
	}
	atWork := b.start(process.Config{Name: "call/2", Journal: true, Argv: []string{"/bin/sh", "-c", "read x; echo $x"}})
	b.keeper.Forget("call/1")
	b.keeper.Forget("call/2")
	journals := func() int {
		found, err := filepath.Glob(filepath.Join(b.config.Dir, "program-*"))
		if err != nil {
			t.Fatal(err)
		}
		return len(found)
	}
	b.until("one journal is left", func() bool { return journals() == 1 })
	b.keeper.Leave()
	b.attach()
	if b.keeper.Has("call/1") || !b.keeper.Has("call/2") {
		t.Error("not the one that has ended is forgotten")
	}
	_ = atWork.Close()
	again := b.start(process.Config{Name: "call/1", Journal: true, Argv: []string{"/bin/sh", "-c", "echo two"}})
	var said strings.Builder
	for f := range again.Frames {
		said.Write(f.Data)
	}
	if again.Attached || said.String() != "two\n" {
		t.Errorf("attached %v, it says %q", again.Attached, &said)
	}
}

// TestLongLine shows that a line of any length comes to the program whole, and is journalled.
func TestLongLine(t *testing.T) {
	b := open(t, keeper.Watchdogs)
	p := b.start(process.Config{Name: "agent", Journal: true, Argv: []string{"/bin/sh", "-c", "head -c 3000001 | wc -c"}})
	if _, err := p.Stdin.Write(append(bytes.Repeat([]byte("x"), 3000000), '\n')); err != nil {
		t.Fatal(err)
	}
	var said strings.Builder
	var last uint64
	for f := range p.Frames {
		if f.Direction == process.Out {
			said.Write(f.Data)
			last = f.Offset
		}
	}
	if strings.TrimSpace(said.String()) != "3000001" || last != 3000001 {
		t.Errorf("it got %q, and said so at %d", &said, last)
	}
}

// TestQuitAtOnce shows that a keeper that is to end at once doesn't wait for a program that an earlier order gave time.
func TestQuitAtOnce(t *testing.T) {
	each(t, func(t *testing.T, fence keeper.Fence) {
		b := open(t, fence)
		p := b.start(process.Config{Argv: []string{"sh", "-c", `
			trap 'echo > "$DIR/told"' TERM; echo > "$DIR/begun"; while :; do echo >> "$DIR/works"; sleep 0.01; done`}})
		b.until("it has begun", func() bool { return b.mark("begun") != "" })
		go func() { _ = p.End(time.Hour) }() // which fails when the keeper ends
		b.until("it is told to end", func() bool { return b.mark("told") != "" })
		if err := b.keeper.Quit(0); err != nil {
			t.Fatal(err)
		}
		if !b.rests("works") {
			t.Error("the program goes on")
		}
		if _, err := os.Stat(filepath.Join(b.config.Dir, "socket")); err == nil { // a keeper that is killed leaves it
			t.Error("the keeper hasn't ended by itself")
		}
	})
}
