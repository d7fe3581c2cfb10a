package keeper

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"code.wake.dev/wake/internal/process"
)

// protocol is the version of what runner and keeper say to each other. A keeper
// refuses a runner of another one, and that runner ends it: no other comes. Both sides of a release
// speak the same, and a change that isn't an addition raises it. Only tests set it.
var protocol = 1 // a constant outside of tests

// What a message is. A message is its length (4 bytes, big endian, of what follows), a
// byte that says which, and its body: bytes of a program for msgInput and msgFrame, JSON for the
// others. Fields that a side doesn't know are ignored.
type kind byte

const (
	// From the runner.
	msgHello  kind = 'h' // hello
	msgStart  kind = 's' // start
	msgInput  kind = 'i' // 4 bytes program, data; no data closes the stdin
	msgRest   kind = 'r' // rest
	msgExtend kind = 'x' // extend
	msgCredit kind = 'c' // credit
	msgEnd    kind = 'e' // end
	msgQuit   kind = 'q' // end everything, and the keeper
	msgForget kind = 'f' // forget
	// From the keeper.
	msgWelcome kind = 'W' // welcome
	msgStarted kind = 'S' // started
	msgFrame   kind = 'F' // 4 bytes program, 1 direction, 8 time, 8 offset, data; direction 0: it was the last
	msgExit    kind = 'X' // exit
	msgEnded   kind = 'E' // ended
	msgState   kind = 'T' // state
)

// maxMessage bounds a message.
const maxMessage = 64 << 20

type hello struct {
	Protocol int    `json:"protocol"`
	Secret   string `json:"secret"`
	// Look asks for the welcome only; no runner is attached. A keeper that doesn't know it attaches the
	// runner, which leaves at once.
	Look bool `json:"look,omitempty"`
}

type welcome struct {
	Protocol int         `json:"protocol"`
	Error    string      `json:"error,omitempty"`
	Fence    Fence       `json:"fence"`
	Pid      int         `json:"pid"`
	Programs []string    `json:"programs"`
	State    keeperState `json:"state"`
	// Stood is how long the tree has been frozen by then, in all. A keeper that doesn't know it says 0.
	Stood time.Duration `json:"stood,omitempty"`
}

type start struct {
	Program uint32   `json:"program"` // as the runner numbers it on this connection
	Name    string   `json:"name"`
	Argv    []string `json:"argv"`
	Dir     string   `json:"dir"`
	Env     []string `json:"env"`
}

type startedMessage struct {
	Program  uint32 `json:"program"`
	Error    string `json:"error,omitempty"`
	Missing  bool   `json:"missing,omitempty"` // the error: there is no such program
	Gone     bool   `json:"gone,omitempty"`    // the error: the keeper has ended its tree, or its guard died
	Errno    int    `json:"errno,omitempty"`   // the system's number of the error, if it has one
	Pid      int    `json:"pid"`               // in the keeper's namespace
	Attached bool   `json:"attached"`
	Offset   uint64 `json:"offset"` // of the last resting point
	State    []byte `json:"state"`
}

type restMessage struct {
	Program uint32 `json:"program"`
	Offset  uint64 `json:"offset"`
	State   []byte `json:"state"`
}

// credit is how much more of a program's frames the runner can take.
type credit struct {
	Program uint32 `json:"program"`
	Bytes   int    `json:"bytes"`
}

// window is how many bytes of frames a runner takes before it has given credit.
const window = 1 << 20

// extend moves the deadline: nanoseconds of the boot clock.
type extend struct {
	Freeze int64 `json:"freeze"`
	Kill   int64 `json:"kill"`
}

type end struct {
	Program uint32        `json:"program"`
	Grace   time.Duration `json:"grace"`
}

// forget removes a program that has ended. A keeper that doesn't know it keeps that until it ends itself.
type forget struct {
	Name string `json:"name"`
}

type exitMessage struct {
	Program uint32 `json:"program"`
	Code    int    `json:"code"`
	Signal  string `json:"signal"`
	Words   string `json:"words"`          // the end of stderr
	Lost    bool   `json:"lost,omitempty"` // the keeper has ended it, or is gone
	// Memory is the bound, in bytes, for which the kernel has killed something of the tree.
	Memory int64 `json:"memory,omitempty"`
	// At is when it ended, in Unix ms; 0 from a keeper that doesn't tell.
	At int64 `json:"at,omitempty"`
}

// toExit is what the message says to the worker that waits for the program.
func (m exitMessage) toExit() process.Exit {
	return process.Exit{Code: m.Code, Signal: m.Signal, Lost: m.Lost, Memory: m.Memory, At: m.At}
}

type endedMessage struct {
	Program uint32 `json:"program"`
	Error   string `json:"error,omitempty"`
	Words   string `json:"words"`
}

// keeperState is what an attached runner should know of the keeper.
type keeperState struct {
	Frozen bool   `json:"frozen"`
	Full   string `json:"full,omitempty"` // why the programs wait for room in their journal
}

// link sends messages. It is safe for many goroutines.
type link struct {
	conn net.Conn
	mu   sync.Mutex
	buf  []byte
}

func (l *link) sendJSON(k kind, body any) error {
	b, err := json.Marshal(body)
	if err != nil {
		return fmt.Errorf("keeper: encode %T: %w", body, err)
	}
	return l.writeMessage(k, b)
}

func (l *link) writeMessage(k kind, parts ...[]byte) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	size := 1
	for _, p := range parts {
		size += len(p)
	}
	l.buf = binary.BigEndian.AppendUint32(l.buf[:0], uint32(size)) // bounded by what programs say at once
	l.buf = append(l.buf, byte(k))
	for _, p := range parts {
		l.buf = append(l.buf, p...)
	}
	if _, err := l.conn.Write(l.buf); err != nil {
		return fmt.Errorf("keeper: %w", err)
	}
	if cap(l.buf) > 1<<20 {
		l.buf = nil
	}
	return nil
}

// readMessage returns the next message. Its body is the caller's.
func readMessage(r io.Reader) (kind, []byte, error) {
	var head [5]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return 0, nil, err
	}
	size := binary.BigEndian.Uint32(head[:])
	if size < 1 || size > maxMessage {
		return 0, nil, fmt.Errorf("keeper: a message of %d bytes", size)
	}
	body := make([]byte, size-1)
	if _, err := io.ReadFull(r, body); err != nil {
		return 0, nil, errors.Join(io.ErrUnexpectedEOF, err)
	}
	return kind(head[4]), body, nil
}

func inputHeader(program uint32) []byte { return binary.BigEndian.AppendUint32(nil, program) }

func frameHeader(program uint32, f process.Frame) []byte {
	b := binary.BigEndian.AppendUint32(make([]byte, 0, 21), program)
	b = append(b, byte(f.Direction))
	b = binary.BigEndian.AppendUint64(b, uint64(f.At)) // the same bits
	return binary.BigEndian.AppendUint64(b, f.Offset)
}

func parseFrame(body []byte) (program uint32, f process.Frame, ok bool) {
	if len(body) < 21 {
		return 0, f, false
	}
	return binary.BigEndian.Uint32(body), process.Frame{
		Direction: process.Direction(body[4]),
		At:        int64(binary.BigEndian.Uint64(body[5:])), // the same bits
		Offset:    binary.BigEndian.Uint64(body[13:]), Data: body[21:],
	}, true
}

func parseInput(body []byte) (program uint32, data []byte, ok bool) {
	if len(body) < 4 {
		return 0, nil, false
	}
	return binary.BigEndian.Uint32(body), body[4:], true
}

// openWait bounds how long a keeper may take to answer.
const openWait = 20 * time.Second

// settings are what a keeper is started with.
type settings struct {
	Dir     string        `json:"dir"`
	Home    string        `json:"home"`
	Secret  string        `json:"secret"`
	Key     []byte        `json:"key"`
	Fence   Fence         `json:"fence"`
	Limit   int64         `json:"limit"` // of the journals, bytes
	Orphan  time.Duration `json:"orphan"`
	Extend  extend        `json:"extend"` // the first deadline
	Listens bool          `json:"listens"`
	User    *process.User `json:"user,omitempty"` // that programs run as
	Groups  Groups        `json:"groups"`
	Memory  int64         `json:"memory,omitempty"` // bound of the tree, bytes
}

// endGrace is how long programs may take to end when the keeper is told to.
const endGrace = 5 * time.Second

// secretName is the file of what a runner must know to attach: it keeps out mistakes,
// not an attacker of the same user.
const secretName = "secret"
