package main

import (
	"context"
	"crypto/ed25519"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"strings"
	"time"

	"code.wake.dev/wake/services/recorder"
)

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
