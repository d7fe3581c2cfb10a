package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"wake/internal/access"
	"wake/pkg/subjects"
)

func (a *app) authCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "auth",
		Short: "Make users, their credentials and certificates for a NATS server",
		Long: `Make users, their credentials and certificates for a NATS server. Each service has
a user who may do what it needs and nothing else; so has whoever steers or only
watches runs.`,
	}
	cmd.AddCommand(a.authGenerateCommand(), a.authUserCommand(), a.authKeyCommand())
	return cmd
}

// Files of an installation's keys, in the folder that auth generate fills.
const (
	authConf    = "auth.conf"
	keysFolder  = "keys"
	credsFolder = "creds"
	tlsFolder   = "tls"
)

type authOptions struct {
	dir   string
	hosts []string
}

func (a *app) authGenerateCommand() *cobra.Command {
	var o authOptions
	cmd := &cobra.Command{
		Use:   "generate",
		Short: "Make all that a new installation needs",
		Long: `Make all that a new installation needs, in a folder that has none of it yet:

    nats.conf             a server with these users, with TLS
    auth.conf             operator and accounts, for a nats.conf of your own
    keys/                 sign more users (wake auth user): keep them where keys are kept
    creds/NAME.creds      credentials of each service, of an operator and a viewer
    tls/                  an authority (ca.crt, ca.key) and the servers' certificate

Nothing is sent anywhere.`,
		Example: `wake auth generate --dir secrets --host nats.example
(cd secrets && exec nats-server -c nats.conf) &
wake init --nats-url tls://nats.example --creds secrets/creds/init.creds --tls-ca secrets/tls/ca.crt`,
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error { return a.authGenerate(o) },
	}
	cmd.Flags().StringVar(&o.dir, "dir", "wake-auth", "`folder` to write to")
	cmd.Flags().StringSliceVar(&o.hosts, "host", []string{"localhost", "127.0.0.1"}, "`names` and addresses under which servers are reached")
	return cmd
}

func (a *app) authGenerate(o authOptions) error {
	if _, err := os.Stat(filepath.Join(o.dir, authConf)); err == nil {
		return usage("choose another --dir, or make single users with wake auth user", "%s has an %s already: new keys would lock out who has credentials", o.dir, authConf)
	}
	keys, err := access.NewKeys(a.names)
	if err != nil {
		return err
	}
	certificates, err := access.NewCertificates(a.prefix, o.hosts)
	if err != nil {
		return err
	}
	files := map[string][]byte{
		filepath.Join(tlsFolder, "ca.crt"):     certificates.CA,
		filepath.Join(tlsFolder, "ca.key"):     certificates.CAKey,
		filepath.Join(tlsFolder, "server.crt"): certificates.Server,
		filepath.Join(tlsFolder, "server.key"): certificates.ServerKey,
		"nats.conf":                            []byte(serverConf),
	}
	account, err := access.Account(keys.Seeds[access.AccountKey])
	if err != nil {
		return err
	}
	for _, r := range access.Roles() {
		u := access.User{Name: string(r), Role: r}
		creds, err := access.Credentials(a.names, account, keys.Seeds[u.SignedBy()], u)
		if err != nil {
			return err
		}
		files[filepath.Join(credsFolder, string(r)+".creds")] = creds
	}
	for name, seed := range keys.Seeds {
		files[seedFile(name)] = append(seed, '\n')
	}
	for name, content := range files {
		if err := writeSecret(filepath.Join(o.dir, name), content); err != nil {
			return err
		}
	}
	// The last: what is half made can be made again.
	if err := writeSecret(filepath.Join(o.dir, authConf), []byte(keys.Conf)); err != nil {
		return err
	}
	if a.json {
		return a.printJSON(map[string]any{"dir": o.dir, "files": len(files) + 1})
	}
	_, err = fmt.Fprintf(a.out, "%s has keys, credentials and certificates; start a server on them with: cd %s && nats-server -c nats.conf\n",
		o.dir, word(o.dir))
	return err
}

// serverConf is a server for one machine. Paths are those of its own folder.
const serverConf = `# Made by wake auth generate: one server, for users with credentials, with TLS. Start it
# in this folder.
server_name: wake
listen: 127.0.0.1:4222
# What is acknowledged is on disk.
jetstream { store_dir: data, sync_interval: always }
tls { cert_file: tls/server.crt, key_file: tls/server.key, timeout: 5 }
include auth.conf
`

func seedFile(name string) string { return filepath.Join(keysFolder, name+".seed") }

func readSeed(dir, name string) ([]byte, error) {
	seed, err := os.ReadFile(filepath.Join(dir, seedFile(name)))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, usage("name the folder with --dir, or make one with wake auth generate", "%s has no %s", dir, seedFile(name))
	}
	if err != nil {
		return nil, fmt.Errorf("keys: %w", err)
	}
	return bytes.TrimSpace(seed), nil
}

// writeSecret writes a file that nobody else may read, wholly or not at all.
func writeSecret(path string, content []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return usage("choose another --dir", "%w", err)
	}
	part := path + ".part"
	if err := os.WriteFile(part, content, 0o600); err != nil {
		return fmt.Errorf("write: %w", err)
	}
	return os.Rename(part, path)
}

type authUserOptions struct {
	dir, role, run, out string
	valid               time.Duration
}

func (a *app) authUserCommand() *cobra.Command {
	var o authUserOptions
	cmd := &cobra.Command{
		Use:   "user NAME",
		Short: "Make credentials of one more user",
		Long: `Make credentials of one more user, with the keys that wake auth generate has made.
The server needs to know nothing of it.

A viewer of one run sees that run's events and alerts, and nothing else, by a
subscription or a consumer whose only filter is the run; the other verbs of wake
need to see more.`,
		Example: `wake auth user ann --role operator
wake auth user guest --role viewer --run review-17 --for 24h
nats sub --stream WAKE_EVENTS 'wake.events.review-17.>' --creds wake-auth/creds/guest.creds`,
		Args: arguments,
		RunE: func(_ *cobra.Command, args []string) error { return a.authUser(args[0], o) },
	}
	cmd.Flags().StringVar(&o.dir, "dir", "wake-auth", "`folder` of the keys")
	cmd.Flags().StringVar(&o.role, "role", string(access.Viewer), "what the user may do: "+roleNames())
	cmd.Flags().StringVar(&o.run, "run", "", "the only `run` that a viewer sees (default: all)")
	cmd.Flags().DurationVar(&o.valid, "for", 0, "`how long` the credentials are good (default: for ever)")
	cmd.Flags().StringVarP(&o.out, "output", "o", "", "`file` to write (default: DIR/creds/NAME.creds)")
	completeFlag(cmd, "role", cobra.FixedCompletions(strings.Split(roleNames(), ", "), cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

func roleNames() string {
	var names []string
	for _, r := range access.Roles() {
		names = append(names, string(r))
	}
	return strings.Join(names, ", ")
}

func (a *app) authUser(name string, o authUserOptions) error {
	if subjects.Escape(name) != name {
		return usage("use letters, digits, _ and -", "%q is no name of a user", name)
	}
	if o.valid < 0 {
		return usage("such as 24h", "--for: %s is no time", o.valid)
	}
	u := access.User{Name: name, Role: access.Role(o.role), Run: o.run, For: o.valid}
	if _, err := u.Role.Permissions(a.names, u.Run, ""); err != nil {
		return usage("the roles are "+roleNames(), "%w", err)
	}
	accountSeed, err := readSeed(o.dir, access.AccountKey)
	if err != nil {
		return err
	}
	account, err := access.Account(accountSeed)
	if err != nil {
		return err
	}
	seed, err := readSeed(o.dir, u.SignedBy())
	if err != nil {
		return err
	}
	creds, err := access.Credentials(a.names, account, seed, u)
	if err != nil {
		return err
	}
	path := o.out
	if path == "" {
		path = filepath.Join(o.dir, credsFolder, name+".creds")
	}
	if _, err := os.Stat(path); err == nil {
		return usage("choose another name, or remove the file", "%s is there already", path)
	}
	if err := writeSecret(path, creds); err != nil {
		return err
	}
	if a.json {
		return a.printJSON(map[string]string{"name": name, "role": o.role, "run": o.run, "file": path})
	}
	_, err = fmt.Fprintf(a.out, "%s: use it with --creds\n", path)
	return err
}
