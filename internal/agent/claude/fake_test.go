package claude_test

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"code.wake.dev/wake/internal/natstest"
)

// The provider's tests run this program as if it were Claude: the environment
// variable FAKE_CLAUDE holds its script. Each line of a script is one of
//
//	> {…}          print a line; ${…} as below
//	< KIND         read lines until one of that kind: user, eof, or a control
//	               request or response by its subtype
//	need FILE      fail unless the file exists
//	await FILE     wait until it does
//	append FILE …  write the rest of the line to the end of a file
//	spawn          leave a process behind, in a session of its own
//	stderr TEXT    print to stderr
//	exit N         end
//	hang           don't end by itself
//	forever LINE   print a line, again and again
//
// ${uuid} and ${text} are of the last user line, ${reply} is what the last
// control response says, ${callbacks} are the hooks of the last control request with their
// time limits, ${argv} and ${env} are what they are.
const fakeScript = "FAKE_CLAUDE"

func TestMain(m *testing.M) {
	if script := os.Getenv(fakeScript); script != "" {
		f := fake{in: bufio.NewReader(os.Stdin), vars: map[string]string{"argv": strings.Join(os.Args[1:], " "), "env": strings.Join(os.Environ(), " ")}}
		for line := range strings.Lines(script) {
			f.do(strings.TrimSpace(line))
		}
		return
	}
	natstest.Main(m)
}

type fake struct {
	in   *bufio.Reader
	vars map[string]string
}

func (f *fake) do(line string) {
	verb, rest, _ := strings.Cut(line, " ")
	switch verb {
	case ">":
		fmt.Println(f.expand(rest))
	case "<":
		f.read(rest)
	case "need":
		if _, err := os.Stat(rest); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(99)
		}
	case "await":
		for {
			if _, err := os.Stat(rest); err == nil {
				return
			}
			<-time.After(5 * time.Millisecond)
		}
	case "append":
		name, text, _ := strings.Cut(rest, " ")
		if err := appendTo(name, f.expand(text)+"\n"); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(96)
		}
	case "spawn":
		c := exec.Command("/bin/sh", "-c", "trap '' TERM; while :; do sleep 1000; done")
		c.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		if err := c.Start(); err != nil {
			panic(err)
		}
		f.vars["child"] = strconv.Itoa(c.Process.Pid)
	case "stderr":
		fmt.Fprintln(os.Stderr, rest)
	case "exit":
		n, _ := strconv.Atoi(rest)
		os.Exit(n)
	case "forever":
		for {
			fmt.Println(rest)
			<-time.After(time.Millisecond)
		}
	case "hang":
		<-time.After(time.Hour)
	}
}

func appendTo(name, text string) error {
	if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
		return err
	}
	file, err := os.OpenFile(name, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = file.WriteString(text)
	return errors.Join(err, file.Close())
}

func (f *fake) expand(s string) string {
	for name, v := range f.vars {
		quoted, _ := json.Marshal(v)
		s = strings.ReplaceAll(s, "${"+name+"}", string(quoted[1:len(quoted)-1]))
	}
	return s
}

func (f *fake) read(kind string) {
	for {
		line, err := f.in.ReadBytes('\n')
		if err != nil {
			if kind != "eof" {
				os.Exit(98)
			}
			return
		}
		var m struct {
			Type, UUID string
			Message    struct{ Content json.RawMessage }
			Request    struct {
				Subtype string
				Hooks   map[string][]struct{ Timeout int }
			}
			Response struct{ Response json.RawMessage }
		}
		if json.Unmarshal(line, &m) != nil {
			os.Exit(97)
		}
		switch m.Type {
		case "user":
			f.vars["uuid"], f.vars["text"] = m.UUID, string(m.Message.Content)
		case "control_response":
			f.vars["reply"] = string(m.Response.Response)
		}
		var callbacks []string
		for _, event := range slices.Sorted(maps.Keys(m.Request.Hooks)) {
			callbacks = append(callbacks, fmt.Sprint(event, " ", m.Request.Hooks[event][0].Timeout))
		}
		if len(callbacks) > 0 {
			f.vars["callbacks"] = strings.Join(callbacks, ", ")
		}
		if m.Type == kind || m.Request.Subtype == kind {
			return
		}
	}
}
