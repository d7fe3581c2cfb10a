package main

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"

	"github.com/nats-io/nats-server/v2/server"

	"code.wake.dev/wake/internal/access"
	"code.wake.dev/wake/internal/service"
)

// serverUsers returns what the server asks of its clients. On this machine that is a
// token. A server that others can reach, or could once, has users, each with the
// rights of a role; the verbs find theirs by the data directory.
func (c embeddedConfig) serverUsers(e *embedded) (*server.Options, error) {
	dir := service.UsersDir(filepath.Dir(c.Dir))
	_, err := os.Stat(filepath.Join(dir, authConf))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("users: %w", err)
	}
	if ip := net.ParseIP(c.Listen); err != nil && (c.Listen == "localhost" || ip != nil && ip.IsLoopback()) {
		token, err := c.readToken()
		return &server.Options{Authorization: token}, err
	}
	if _, err := renewUsers(dir, c.Names); err != nil {
		return nil, err
	}
	keys, err := readKeys(dir, access.LogAccount.SeedName())
	if err != nil {
		return nil, err
	}
	account, err := keys.Account(access.LogAccount)
	if err != nil {
		return nil, err
	}
	if err := c.adoptStored(account); err != nil {
		return nil, err
	}
	e.creds = service.UserCreds(filepath.Dir(c.Dir), access.Up)
	options, err := server.ProcessConfigFile(filepath.Join(dir, authConf))
	if err != nil {
		return nil, fmt.Errorf("users: %w", err)
	}
	return options, nil
}

// adoptStored gives an account what was stored while there were no users.
func (c embeddedConfig) adoptStored(account string) error {
	before, now := filepath.Join(c.Dir, server.JetStreamStoreDir, server.DEFAULT_GLOBAL_ACCOUNT), filepath.Join(c.Dir, server.JetStreamStoreDir, account)
	if _, err := os.Stat(now); err == nil {
		return nil
	}
	if err := os.Rename(before, now); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("users: give account %s what is stored: %w", account, err)
	}
	return nil
}
