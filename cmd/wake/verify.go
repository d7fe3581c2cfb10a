package main

import (
	"cmp"
	"context"
	"crypto/ed25519"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"code.wake.dev/wake/internal/timeline"
	"code.wake.dev/wake/services/recorder"
)

// codeDamaged is the code of a record that isn't as it was written.
const codeDamaged = "DAMAGED"

type verifyOptions struct {
	all    bool
	file   string
	stream bool
	sign   string // file of the key
	anchor string // file
	key    string // that has signed it
	since  string // file of the heads that were verified
}

func (a fileVerbs) verifyCommand() *cobra.Command {
	var o verifyOptions
	cmd := &cobra.Command{
		Use:   "verify {RUN | --all}",
		Short: "Check that a record is as it was written",
		Long: `Check that the record of a run, or of all, is as it was written: no event was
changed, removed, added or moved since, and everything that the recorder derives
from the events is what they say. What is damaged is named with its place.

The recorder's store is read, not the server; the recorder may be at work. With
--against-stream events and alerts are also compared with those that the streams
still have, and the snapshots of the server with what the events fold into.

With --since FILE only runs in which something has happened since the check that wrote
FILE are read, whole, and FILE is written anew; the first time all are. So a check costs
what has come, and sees no damage to what it has checked before: check all now and then.

A user who can write to the store can compute the hashes anew. Against that, --sign prints
an anchor, the last hash of each run, signed by a key of Ed25519 in FILE, which is made
if there is none. Keep the anchor and its publicKey elsewhere; --anchor with --key
then says whether the store still has those events.`,
		Args: func(cmd *cobra.Command, args []string) error {
			if o.all == (len(args) > 0) {
				return errors.New("give a run, or --all")
			}
			if o.since != "" && !o.all {
				return errors.New("--since is for --all")
			}
			return cobra.MaximumNArgs(1)(cmd, args)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			run := ""
			if !o.all {
				run = args[0]
			}
			return a.verifyRecord(cmd.Context(), run, o)
		},
	}
	cmd.Flags().BoolVar(&o.all, "all", false, "check all runs, and what is of none")
	storeFlag(cmd.Flags(), &o.file, "check this `store`: a SQLite file, or postgres://USER@HOST/DATABASE (default: DIR/recorder.db)")
	cmd.Flags().BoolVar(&o.stream, "against-stream", false, "compare with the server's stream, too")
	cmd.Flags().StringVar(&o.sign, "sign", "", "if all is as it was, print an anchor that the key in this `file` signs")
	cmd.Flags().StringVar(&o.anchor, "anchor", "", "compare with the anchor in this `file`")
	cmd.Flags().StringVar(&o.key, "key", "", "public `key` that must have signed the anchor, in hex")
	cmd.Flags().StringVar(&o.since, "since", "", "with --all: check what has come since the check that wrote this `file`, and write it anew")
	cmd.MarkFlagsRequiredTogether("anchor", "key")
	cmd.MarkFlagsMutuallyExclusive("since", "against-stream", "anchor", "sign")
	cmd.MarkFlagsMutuallyExclusive("anchor", "against-stream")
	cmd.MarkFlagsMutuallyExclusive("anchor", "sign")
	return cmd
}

func (a fileVerbs) verifyRecord(ctx context.Context, run string, o verifyOptions) (err error) {
	o.file = cmp.Or(o.file, filepath.Join(a.server.DataDir, "recorder.db"))
	store, err := openStored(ctx, o.file)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	m := a.newMeter("verify", "events").start()
	store.Checker.Progress = m.notePart
	v, err := a.verifyStore(ctx, store, run, o)
	m.eraseLine()
	if err != nil {
		return err
	}
	if o.sign == "" || len(v.Damages) > 0 {
		err = a.printVerification(v)
	} else {
		err = a.signRecord(ctx, store, run, o)
	}
	if err != nil {
		return err
	}
	if n := len(v.Damages) + v.Omitted; n > 0 {
		return serviceError(codeDamaged, v.Remedy(), "%s isn't as it was recorded: %d damages", store.Archive.Name, n)
	}
	return nil
}

// openStored opens the store of a recorder for reading.
func openStored(ctx context.Context, path string) (*recorder.Store, error) {
	store, err := recorder.OpenReadOnly(ctx, path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, serviceError(codeFailed, "wake up keeps it as recorder.db in its data directory (--data-dir), unless its --store names a database: give the same here", "%w", err)
	}
	return store, err
}

func (a fileVerbs) verifyStore(ctx context.Context, store *recorder.Store, run string, o verifyOptions) (recorder.Verification, error) {
	if o.since != "" {
		return verifySince(ctx, store, o.since)
	}
	if o.anchor != "" {
		anchor, err := readAnchor(o)
		if err != nil {
			return recorder.Verification{}, err
		}
		return store.Checker.VerifyAnchored(ctx, run, anchor)
	}
	if !o.stream {
		return store.Checker.Verify(ctx, run)
	}
	log, err := a.openLog(ctx)
	if err != nil {
		return recorder.Verification{}, err
	}
	defer log.Conn().Close()
	return store.Checker.VerifyAgainst(ctx, run, log)
}

func (a fileVerbs) printVerification(v recorder.Verification) error {
	if a.json {
		return a.printJSON(v)
	}
	p := printer{w: a.out}
	for _, d := range v.Damages {
		p.printLine("%s", timeline.Line(d.String(), maxMessage))
	}
	if v.Omitted > 0 {
		p.printLine("and %d more", v.Omitted)
	}
	if len(v.Damages) > 0 {
		return p.err
	}
	odd := ""
	if v.Compared > 0 {
		odd = fmt.Sprintf("; %d are those of the stream", v.Compared)
	}
	if v.Anchored > 0 {
		odd += fmt.Sprintf("; %d runs are as they were anchored", v.Anchored)
	}
	if v.Known > 0 {
		odd += fmt.Sprintf("; nothing has happened in %d of the runs since they were checked", v.Known)
	}
	if v.Void > 0 || v.Gaps > 0 {
		odd += fmt.Sprintf("; %d were void, %d were missing, when they were recorded", v.Void, v.Gaps)
	}
	if v.Derived < v.Position.Seq {
		odd += fmt.Sprintf("; what follows from those after position %d isn't derived yet", v.Derived)
	}
	if v.Other > 0 {
		odd += fmt.Sprintf("; what follows from the events of %d runs was derived by another version, and isn't compared: `wake rebuild recorder` derives it anew", v.Other)
	}
	switch v.Deleted {
	case 0:
	case 1:
		odd += "; 1 run was deleted"
	default:
		odd += fmt.Sprintf("; %d runs were deleted", v.Deleted)
	}
	p.printLine("ok: %d events of %d runs, up to position %d%s", v.Events, v.Runs, v.Position.Seq, odd)
	return p.err
}

// signingKey reads a key of Ed25519, its seed in hex, and makes one if there is none.
func signingKey(file string) (ed25519.PrivateKey, error) {
	text, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		_, key, err := ed25519.GenerateKey(nil)
		if err != nil {
			return nil, err
		}
		return key, os.WriteFile(file, []byte(hex.EncodeToString(key.Seed())+"\n"), 0o600)
	}
	if err != nil {
		return nil, usageError("", "--sign: %w", err)
	}
	seed, err := hex.DecodeString(strings.TrimSpace(string(text)))
	if err != nil || len(seed) != ed25519.SeedSize {
		return nil, usageError("name a file that isn't there, and a key is made", "--sign: %s has no key", file)
	}
	return ed25519.NewKeyFromSeed(seed), nil
}

// signRecord prints an anchor of what was found to be as it was recorded.
func (a fileVerbs) signRecord(ctx context.Context, store *recorder.Store, run string, o verifyOptions) error {
	key, err := signingKey(o.sign)
	if err != nil {
		return err
	}
	anchor, err := store.Checker.MakeAnchor(ctx, run, key, time.Now())
	if err != nil {
		return err
	}
	return a.printJSON(anchor)
}

// readAnchor reads an anchor, which the key must have signed.
func readAnchor(o verifyOptions) (recorder.Anchor, error) {
	var anchor recorder.Anchor
	key, err := hex.DecodeString(o.key)
	if err != nil || len(key) != ed25519.PublicKeySize {
		return anchor, usageError("the publicKey of an anchor, as you kept it", "--key: %q is no public key", o.key)
	}
	text, err := os.ReadFile(o.anchor)
	if err != nil {
		return anchor, usageError("", "--anchor: %w", err)
	}
	if err := json.Unmarshal(text, &anchor); err != nil {
		return anchor, usageError("", "--anchor: %s is none: %w", o.anchor, err)
	}
	if err := anchor.Check(key); err != nil {
		return anchor, serviceError(codeDamaged, "", "%s: %w", o.anchor, err)
	}
	return anchor, nil
}

// verifySince checks what has come since the check that wrote a file, and writes it anew.
func verifySince(ctx context.Context, store *recorder.Store, file string) (v recorder.Verification, err error) {
	var known recorder.Heads
	text, err := os.ReadFile(file)
	switch {
	case err == nil:
		err = json.Unmarshal(text, &known)
	case errors.Is(err, fs.ErrNotExist):
		err = nil
	}
	if err != nil {
		return v, usageError("name a file that isn't there, and all is checked", "--since: %s is of no earlier check: %w", file, err)
	}
	v, known, err = store.Checker.VerifySince(ctx, known)
	if err != nil {
		return v, err
	}
	if text, err = json.Marshal(known); err != nil {
		return v, err
	}
	return v, writeSecret(file, append(text, '\n'))
}
