package topology

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/nats-io/nats.go/jetstream"

	"code.wake.dev/wake/pkg/subjects"
)

// A Mismatch says everything that keeps services from running.
type Mismatch struct {
	Problems []string // such as "stream WAKE_EVENTS: missing"
	Remedy   string   // a command line
}

func (m *Mismatch) Error() string {
	return "topology: " + strings.Join(m.Problems, "; ") + "; run `" + m.Remedy + "`"
}

// Verify checks what services rely on and fails with a [*Mismatch] that names
// all problems. Limits that the operator may choose (replicas, ages, sizes) are
// not checked. It changes nothing.
func Verify(ctx context.Context, js jetstream.JetStream, n subjects.Names) error {
	if err := checkServer(js); err != nil {
		return err
	}
	c := Config{Names: n}
	v := verifier{js: js, names: n}
	for _, r := range allRooms(c) {
		if err := v.verifyRoom(ctx, c, r); err != nil {
			return fmt.Errorf("topology: verify %s %s: %w", r.kind, r.name, err)
		}
	}
	if v.missing[n.EventsStream()] {
		return v.toMismatch()
	}
	for _, want := range durableConsumers(n) {
		if err := v.verifyConsumer(ctx, want); err != nil {
			return fmt.Errorf("topology: verify consumer %s: %w", want.Name, err)
		}
	}
	return v.toMismatch()
}

// verifier collects problems.
type verifier struct {
	js       jetstream.JetStream
	names    subjects.Names
	problems []string
	missing  map[string]bool

	restoring bool // then all else is no news
}

func (v *verifier) addProblem(kind Kind, name, format string, args ...any) {
	v.problems = append(v.problems, fmt.Sprintf("%s %s: ", kind, name)+fmt.Sprintf(format, args...))
}

func (v *verifier) toMismatch() error {
	switch {
	case v.restoring:
		return restoringMismatch(v.names)
	case len(v.problems) == 0:
		return nil
	}
	return &Mismatch{Problems: v.problems, Remedy: withPrefix("wake init", v.names)}
}

// withPrefix returns a command for an installation.
func withPrefix(command string, n subjects.Names) string {
	if n.Prefix() != subjects.DefaultPrefix {
		command += " --prefix " + n.Prefix()
	}
	return command
}

// Leaderless returns the streams that no server leads at the moment, so that
// nothing can be stored in them or read.
func Leaderless(ctx context.Context, js jetstream.JetStream, n subjects.Names) ([]string, error) {
	var names []string
	for _, r := range allRooms(Config{Names: n}) {
		s, err := js.Stream(ctx, r.want.Name)
		switch {
		case errorCode(err) == codeStreamOffline:
			names = append(names, r.want.Name)
			continue
		case err != nil:
			return nil, fmt.Errorf("topology: %s %s: %w", r.kind, r.name, explainError(err, ""))
		}
		if c := s.CachedInfo().Cluster; c != nil && c.Leader == "" {
			names = append(names, r.want.Name)
		}
	}
	return names, nil
}

// reliedStream are the settings of a stream that the promises rest on.
var reliedStream = []string{
	"subjects", "storage", "retention", "discard", "max_msgs", "max_msgs_per_subject", "no_ack", "sealed",
	"deny_delete", "deny_purge", "allow_rollup_hdrs", "allow_direct", "allow_atomic",
}

func (v *verifier) verifyRoom(ctx context.Context, c Config, r room) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	s, err := v.js.Stream(ctx, r.want.Name)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		v.addProblem(r.kind, r.name, "missing")
		if v.missing == nil {
			v.missing = map[string]bool{}
		}
		v.missing[r.want.Name] = true
		return nil
	}
	if err != nil {
		return explainError(err, "")
	}
	cur := s.CachedInfo().Config
	if err := checkForeign(r, v.names, cur); err != nil {
		v.addProblem(r.kind, r.name, "%v", err)
		return nil
	}
	v.restoring = v.restoring || cur.Metadata[RestoringKey] != ""
	for _, change := range changesOf(diffFields(cur, r.decideStream(c, &cur)), reliedStream...) {
		v.addProblem(r.kind, r.name, "%s is %s, must be %s", change.Field, change.Old, change.New)
	}
	if r.want.Name == v.names.EventsStream() && cur.Metadata[incarnationKey] == "" {
		v.addProblem(r.kind, r.name, "has no incarnation")
	}
	if r.name == v.names.LeasesBucket() && cur.MaxAge <= 0 {
		v.addProblem(r.kind, r.name, "max_age is 0s: leases would never end")
	}
	return nil
}

func (v *verifier) verifyConsumer(ctx context.Context, want jetstream.ConsumerConfig) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	c, err := v.js.Consumer(ctx, v.names.EventsStream(), want.Name)
	if errors.Is(err, jetstream.ErrConsumerNotFound) {
		v.addProblem(Consumer, want.Name, "missing")
		return nil
	}
	if err != nil {
		return explainError(err, "")
	}
	cur := c.CachedInfo().Config
	for _, change := range Altered(want, cur) {
		v.addProblem(Consumer, want.Name, "%s is %s, must be %s", change.Field, change.Old, change.New)
	}
	return nil
}

// Change is a setting that is not what it shall be.
type Change struct {
	Field string `json:"field"` // as NATS calls it
	Old   string `json:"old"`
	New   string `json:"new"`
}

func (c Change) String() string { return fmt.Sprintf("%s %s → %s", c.Field, c.Old, c.New) }

// diffFields lists the fields in which two structs of one type differ, in their order.
func diffFields[T any](cur, want T) []Change {
	var changes []Change
	a, b := reflect.ValueOf(cur), reflect.ValueOf(want)
	for i := range a.NumField() {
		x, y := a.Field(i), b.Field(i)
		if reflect.DeepEqual(x.Interface(), y.Interface()) || x.Kind() == reflect.Slice && x.Len() == 0 && y.Len() == 0 {
			continue
		}
		name, _, _ := strings.Cut(a.Type().Field(i).Tag.Get("json"), ",")
		changes = append(changes, Change{Field: name, Old: fmt.Sprint(x.Interface()), New: fmt.Sprint(y.Interface())})
	}
	return changes
}

// changesOf returns those of the changes that are of the given fields.
func changesOf(changes []Change, fields ...string) []Change {
	return slices.DeleteFunc(slices.Clone(changes), func(c Change) bool { return !slices.Contains(fields, c.Field) })
}

func joinChanges(changes []Change) string {
	texts := make([]string, len(changes))
	for i, c := range changes {
		texts[i] = c.String()
	}
	return strings.Join(texts, ", ")
}
