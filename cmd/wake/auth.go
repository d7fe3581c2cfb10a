package main

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"code.wake.dev/wake/internal/access"
	"code.wake.dev/wake/internal/ask"
	"code.wake.dev/wake/internal/durable"
	"code.wake.dev/wake/internal/seal"
	"code.wake.dev/wake/pkg/subjects"
)

func (a hostVerbs) authCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "auth",
		Short: "Make users, their credentials and certificates for a NATS server",
		Long: `Make users, their credentials and certificates for a NATS server. Each service has
a user who may do what it needs and nothing else; so has a person who steers runs, or
only watches them.`,
	}
	cmd.AddCommand(a.authGenerateCommand(), a.authUpgradeCommand(), a.authUserCommand(), a.authKeyCommand())
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

func (a hostVerbs) authGenerateCommand() *cobra.Command {
	var o authOptions
	cmd := &cobra.Command{
		Use:   "generate",
		Short: "Make all that a new installation needs",
		Long: `Make all that a new installation needs, in a folder that has none of it yet:

    nats.conf             a server with these users, with TLS
    auth.conf             operator and accounts, for a nats.conf of your own
    keys/                 sign more users (wake auth user), and the accounts
                          (nats-operator.seed): keep them where keys are kept
    creds/NAME.creds      credentials of each service, of an operator, a viewer and so on
    tls/                  an authority (ca.crt, ca.key) and the servers' certificate

Nothing is sent anywhere.`,
		Example: `wake auth generate --dir secrets --host nats.example
(cd secrets && exec nats-server -c nats.conf) &
wake init --nats-url tls://nats.example --creds secrets/creds/init.creds --tls-ca secrets/tls/ca.crt`,
		RunE: func(*cobra.Command, []string) error { return a.authGenerate(o) },
	}
	cmd.Flags().StringVar(&o.dir, "dir", "wake-auth", "`folder` to write to")
	cmd.Flags().StringSliceVar(&o.hosts, "host", []string{"localhost", "127.0.0.1"}, "`names` and addresses under which servers are reached")
	return cmd
}

func (a hostVerbs) authGenerate(o authOptions) error {
	if _, err := os.Stat(filepath.Join(o.dir, authConf)); err == nil {
		return usageError("choose another --dir, or make single users with wake auth user", "%s has an %s already: new keys would lock out all users that have credentials", o.dir, authConf)
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
	for name, content := range files {
		if err := writeSecret(filepath.Join(o.dir, name), content); err != nil {
			return err
		}
	}
	r, err := renewUsers(o.dir, a.names, access.Up)
	if err != nil {
		return err
	}
	return a.printAnswer(map[string]any{"dir": o.dir, "files": len(files) + r.files}, fmt.Sprintf(
		"%s has keys, credentials and certificates; start a server on them with: cd %s && nats-server -c nats.conf", o.dir, ask.ShellWord(o.dir)))
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

func credsFile(name string) string { return filepath.Join(credsFolder, name+".creds") }

// readKeys reads the seeds of a folder: those that are named, or all.
func readKeys(dir string, names ...string) (access.Keys, error) {
	k := access.Keys{Seeds: map[string][]byte{}}
	if len(names) == 0 {
		paths, err := fs.Glob(os.DirFS(dir), filepath.ToSlash(seedFile("*")))
		if err != nil {
			return k, fmt.Errorf("keys: %w", err)
		}
		for _, seed := range paths {
			names = append(names, strings.TrimSuffix(path.Base(seed), ".seed"))
		}
	}
	for _, name := range names {
		seed, err := os.ReadFile(filepath.Join(dir, seedFile(name)))
		if errors.Is(err, fs.ErrNotExist) {
			return k, usageError("name the folder with --dir, make one with wake auth generate, or bring it up to date with wake auth upgrade", "%s has no %s", dir, seedFile(name))
		}
		if err != nil {
			return k, fmt.Errorf("keys: %w", err)
		}
		k.Seeds[name] = bytes.TrimSpace(seed)
	}
	return k, nil
}

// writeSecret writes a file that no other user may read, wholly or not at all.
func writeSecret(path string, content []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return usageError("choose another --dir", "%w", err)
	}
	return durable.Write(path, content, 0o600)
}

type authUserOptions struct {
	dir, role, run, out string
	valid               time.Duration
}

func (a hostVerbs) authUserCommand() *cobra.Command {
	var o authUserOptions
	cmd := &cobra.Command{
		Use:   "user NAME",
		Short: "Make credentials of one more user",
		Long: `Make credentials of one more user, with the keys that wake auth generate has made.
The server needs to know nothing of it.

A guest, who is a viewer of one run, may ask about that run and about nothing else. A debugger listens to events and alerts of all runs as they
are published, which is before they are stored.`,
		Example: `wake auth user ann --role operator
wake auth user guest --role guest --run review-17 --for 24h
wake status review-17 --creds wake-auth/creds/guest.creds`,
		RunE: func(_ *cobra.Command, args []string) error { return a.authUser(args[0], o) },
	}
	cmd.Flags().StringVar(&o.dir, "dir", "wake-auth", "`folder` of the keys")
	cmd.Flags().StringVar(&o.role, "role", string(access.Viewer), "what the user may do: "+roleNames())
	cmd.Flags().StringVar(&o.run, "run", "", "the `run` that a guest sees")
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

func (a hostVerbs) authUser(name string, o authUserOptions) error {
	if subjects.Escape(name) != name {
		return usageError("use letters, digits, _ and -", "%q is no name of a user", name)
	}
	if o.valid < 0 {
		return usageError("such as 24h", "--for: %s is no time", o.valid)
	}
	u := access.User{Name: name, Role: access.Role(o.role), Run: o.run, For: o.valid}
	if u.Role == access.Viewer && u.Run != "" {
		u.Role = access.Guest
	}
	if err := u.Check(); err != nil {
		return usageError("the roles are "+roleNames(), "%w", err)
	}
	seeds, err := u.Seeds()
	if err != nil {
		return err
	}
	keys, err := readKeys(o.dir, seeds...)
	if err != nil {
		return err
	}
	if conf, err := os.ReadFile(filepath.Join(o.dir, authConf)); err == nil && a.names != subjects.Default { // whose users they are follows from the keys
		keys.Conf = string(conf)
		if err := keys.CheckPrefix(a.names); err != nil {
			return usageError("name the folder of its keys with --dir", "--prefix: %w", err)
		}
	}
	creds, err := keys.Credentials(u)
	if err != nil {
		return err
	}
	path := cmp.Or(o.out, filepath.Join(o.dir, credsFile(name)))
	if _, err := os.Stat(path); err == nil {
		return usageError("choose another name, or remove the file", "%s is there already", path)
	}
	if err := writeSecret(path, creds); err != nil {
		return err
	}
	return a.printAnswer(map[string]string{"name": name, "role": string(u.Role), "run": o.run, "file": path}, path+": use it with --creds")
}

func (a hostVerbs) authKeyCommand() *cobra.Command {
	var reading bool
	var use string
	cmd := &cobra.Command{
		Use:   "key FILE",
		Short: "Make a key that encrypts what is stored of runs",
		Long: `Make a key that encrypts what is stored of runs, and put it into a file, which is made
if there is none. The first key of the file is the one for writing; the others are for
reading what they encrypted. Give the file to every process and verb by
--encryption-keys. Without it, what was encrypted is lost.

To change keys while everything runs, add one for --reading and give the file to all,
then make it the one for writing with --use and give the file to all again.

What is encrypted and what stays readable is in docs/security.md.`,
		Example: `wake auth key wake.keys
wake up --encryption-keys wake.keys
wake auth key wake.keys --reading
wake auth key wake.keys --use 1f0c9a3e
nats stream get WAKE_EVENTS 17 --translate 'wake decode --encryption-keys wake.keys'`,
		RunE: func(_ *cobra.Command, args []string) error {
			if reading && use != "" {
				return usageError("first --reading, then --use with the id that it told", "--use: it is for writing, and --reading makes one that isn't")
			}
			id, err := use, error(nil)
			if use != "" {
				err = seal.Use(args[0], use)
			} else {
				id, err = seal.Add(args[0], reading)
			}
			if err != nil {
				return err
			}
			what := "the one for writing"
			if reading {
				what = "one for reading"
			}
			return a.printAnswer(map[string]string{"id": id, "file": args[0]}, fmt.Sprintf("key %s is %s in %s", id, what, args[0]))
		},
	}
	cmd.Flags().BoolVar(&reading, "reading", false, "add the key behind the others: nothing is written under it yet")
	cmd.Flags().StringVar(&use, "use", "", "make no key; make the one of this `id` the one for writing")
	return cmd
}
