package workspace

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"code.wake.dev/wake/pkg/subjects"
)

// Usage is what snapshots of all runs take.
type Usage struct {
	Packs uint64
	Bytes int64
}

// Used returns what snapshots of all runs take.
func Used(ctx context.Context, js jetstream.JetStream, names subjects.Names) (Usage, error) {
	stream, err := js.Stream(ctx, "OBJ_"+names.WorkspacesBucket())
	if err != nil {
		return Usage{}, fmt.Errorf("workspace: object store %s: %w", names.WorkspacesBucket(), err)
	}
	s := stream.CachedInfo().State
	return Usage{s.Msgs, int64(s.Bytes)}, nil //nolint:gosec // no disk is as large
}

// Holders returns which runs have packed something. It asks the server for the names of all packs.
func Holders(ctx context.Context, js jetstream.JetStream, names subjects.Names) (holds func(run string) bool, err error) {
	bucket := names.WorkspacesBucket()
	packs := "$O." + bucket + ".C."
	stream, err := js.Stream(ctx, "OBJ_"+bucket)
	if err != nil {
		return nil, fmt.Errorf("workspace: object store %s: %w", bucket, err)
	}
	info, err := stream.Info(ctx, jetstream.WithSubjectFilter(packs+">"))
	if err != nil {
		return nil, fmt.Errorf("workspace: object store %s: %w", bucket, err)
	}
	tokens := map[string]bool{}
	for subject := range info.State.Subjects {
		token, _, _ := strings.Cut(strings.TrimPrefix(subject, packs), ".")
		tokens[token] = true
	}
	return func(run string) bool { return tokens[subjects.Escape(run)] }, nil
}

// Drop removes all that a run has packed.
func Drop(ctx context.Context, nc *nats.Conn, names subjects.Names, run string) error {
	bucket := names.WorkspacesBucket()
	request, err := json.Marshal(map[string]string{"filter": "$O." + bucket + ".C." + subjects.Escape(run) + ".*"})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, answerWait)
	defer cancel()
	reply, err := nc.RequestWithContext(ctx, "$JS.API.STREAM.PURGE.OBJ_"+bucket, request)
	if err != nil {
		return fmt.Errorf("workspace: drop: %w", err)
	}
	var answer struct {
		Error *jetstream.APIError `json:"error"`
	}
	if err := json.Unmarshal(reply.Data, &answer); err != nil {
		return fmt.Errorf("workspace: drop: %w", err)
	}
	if answer.Error != nil {
		return fmt.Errorf("workspace: drop: %w", answer.Error)
	}
	return nil
}
