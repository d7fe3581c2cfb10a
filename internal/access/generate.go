package access

import (
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nkeys"

	"code.wake.dev/wake/pkg/subjects"
)

// inboxPrefix is what the inboxes of a user begin with; the rest is its public key.
const inboxPrefix = "_INBOX_"

// Tags of users, which the server tells the services that they ask.
const (
	ownInbox  = "own-inbox"   // the role, which their tokens don't show, has them get answers nowhere else
	knowsUser = "knows-users" // of services: callers reach them by an import, so that the server names the caller
	runTag    = "run"         // the run that a guest reads, in hexadecimal: the server has tags in lower case
)

// Keys are what makes an installation's users. What a role may do is in its account,
// under a key that signs users of that role and no others: so a user's token stays
// small, and an operator who loses such a key has lost no more than that role.
type Keys struct {
	Conf  string            // for the server: operator and accounts
	Seeds map[string][]byte // by role; those of accounts, and of the operator that signs the accounts, by name
}

// operatorSeed names the seed in [Keys] that signs the accounts.
const operatorSeed = "nats-operator"

// SeedName names the seed in [Keys] of an account.
func (a Account) SeedName() string {
	if a == LogAccount {
		return "account"
	}
	return "account-" + string(a)
}

// Renew signs the accounts of an installation again, so that each role may do what it
// may today, and makes the keys that it lacks. What is stored belongs to the keys of
// accounts and stays; so do users of accounts, unless their role has moved to another
// one. No key of an account signs users: only those of roles do.
func (k Keys) Renew(n subjects.Names) (Keys, error) {
	if err := k.checkMatch(n); err != nil {
		return k, err
	}
	r := Keys{Seeds: maps.Clone(k.Seeds)}
	if r.Seeds == nil {
		r.Seeds = map[string][]byte{}
	}
	operator, operatorKey, err := r.ensurePair(operatorSeed, nkeys.CreateOperator)
	if err != nil {
		return k, err
	}
	signer, signs, err := newPair(nkeys.CreateOperator)
	if err != nil {
		return k, err
	}
	systemKey, err := k.systemKey()
	if err != nil {
		return k, err
	}
	oc := jwt.NewOperatorClaims(operatorKey)
	oc.Name, oc.SystemAccount, oc.StrictSigningKeyUsage = n.Prefix(), systemKey, true
	oc.SigningKeys.Add(signs)
	token, err := oc.Encode(operator)
	if err != nil {
		return k, fmt.Errorf("access: sign: %w", err)
	}
	sc := jwt.NewAccountClaims(systemKey)
	sc.Name = "SYS"
	accounts, err := r.accountClaims(n)
	if err != nil {
		return k, err
	}
	var b strings.Builder
	fmt.Fprintf(&b, "# Made by wake auth. There is nothing secret in it.\noperator: %s\nsystem_account: %s\nresolver: MEMORY\nresolver_preload: {\n", token, systemKey)
	for _, c := range append([]*jwt.AccountClaims{sc}, accounts...) {
		problems := jwt.CreateValidationResults()
		if c.Validate(problems); problems.IsBlocking(false) {
			return k, fmt.Errorf("access: account %s: %w", c.Name, errors.Join(problems.Errors()...))
		}
		if token, err = c.Encode(signer); err != nil {
			return k, fmt.Errorf("access: sign: %w", err)
		}
		fmt.Fprintf(&b, "  %s: %s\n", c.Subject, token)
	}
	b.WriteString("}\n")
	r.Conf = b.String()
	return r, nil
}

// checkMatch says why the keys aren't those of the configuration: with a new key for the log's
// account, its streams would be out of reach.
func (k Keys) checkMatch(n subjects.Names) error {
	if k.Conf == "" {
		return nil
	}
	if _, ok := k.Seeds[LogAccount.SeedName()]; !ok {
		return fmt.Errorf("access: the seed %s is missing", LogAccount.SeedName())
	}
	public, err := k.Account(LogAccount)
	if err != nil {
		return err
	}
	if !strings.Contains(k.Conf, public) {
		return fmt.Errorf("access: the seed %s isn't that of an account of the configuration", LogAccount.SeedName())
	}
	return k.CheckPrefix(n)
}

// CheckPrefix fails if the configuration is that of an installation of another prefix.
func (k Keys) CheckPrefix(n subjects.Names) error {
	c, err := jwt.DecodeOperatorClaims(k.confSetting("operator"))
	if err != nil {
		return errors.New("access: the configuration of the server names no operator")
	}
	if c.Name != n.Prefix() {
		return fmt.Errorf("access: the configuration is that of prefix %s, not %s", c.Name, n.Prefix())
	}
	return nil
}

func (k Keys) confSetting(name string) string {
	for line := range strings.Lines(k.Conf) {
		if value, ok := strings.CutPrefix(strings.TrimSpace(line), name+": "); ok {
			return value
		}
	}
	return ""
}

// ensurePair returns the keys of a name, which are made if there are none.
func (k *Keys) ensurePair(name string, create func() (nkeys.KeyPair, error)) (nkeys.KeyPair, string, error) {
	if seed, ok := k.Seeds[name]; ok {
		return fromSeed(name, seed)
	}
	key, public, err := newPair(create)
	if err != nil {
		return nil, "", err
	}
	if k.Seeds[name], err = key.Seed(); err != nil {
		return nil, "", fmt.Errorf("access: %w", err)
	}
	return key, public, nil
}

func fromSeed(name string, seed []byte) (nkeys.KeyPair, string, error) {
	key, err := nkeys.FromSeed(seed)
	if err != nil {
		return nil, "", fmt.Errorf("access: seed %s: %w", name, err)
	}
	public, err := key.PublicKey()
	if err != nil {
		return nil, "", fmt.Errorf("access: seed %s: %w", name, err)
	}
	return key, public, nil
}

// systemKey returns the public key of the system account: the one that servers have, by
// which those of a cluster find each other, or a new one. Its seed isn't kept.
func (k Keys) systemKey() (string, error) {
	if k.Conf == "" {
		_, public, err := newPair(nkeys.CreateAccount)
		return public, err
	}
	if public := k.confSetting("system_account"); nkeys.IsValidPublicAccountKey(public) {
		return public, nil
	}
	return "", errors.New("access: the configuration of the server names no system account")
}

// accountClaims makes the claims of all accounts, each with a signing key for each of its
// roles, and what it exports and imports.
func (k *Keys) accountClaims(n subjects.Names) ([]*jwt.AccountClaims, error) {
	var all []*jwt.AccountClaims
	of := map[Account]*jwt.AccountClaims{}
	for _, a := range Accounts() {
		_, public, err := k.ensurePair(a.SeedName(), nkeys.CreateAccount)
		if err != nil {
			return nil, err
		}
		c := jwt.NewAccountClaims(public)
		c.Name = strings.ToUpper(n.Prefix() + "-" + string(a))
		if a == LogAccount {
			c.Limits.JetStreamLimits = jwt.JetStreamLimits{DiskStorage: jwt.NoLimit, Streams: jwt.NoLimit, Consumer: jwt.NoLimit}
		}
		all, of[a] = append(all, c), c
	}
	for _, s := range seats {
		_, signs, err := k.ensurePair(string(s.role), nkeys.CreateAccount)
		if err != nil {
			return nil, err
		}
		p, err := s.role.Permissions(n, inboxPrefix+"{{subject()}}")
		if err != nil {
			return nil, err
		}
		scope := jwt.NewUserScope()
		scope.Key, scope.Role, scope.Template.Permissions = signs, string(s.role), p.toClaims()
		of[s.account].SigningKeys.AddScopedSigner(scope)
	}
	services, streams := logExports(n)
	for _, subject := range services {
		of[LogAccount].Exports.Add(&jwt.Export{Name: subject, Subject: jwt.Subject(subject), Type: jwt.Service})
	}
	for _, subject := range streams {
		of[LogAccount].Exports.Add(&jwt.Export{Name: subject, Subject: jwt.Subject(subject), Type: jwt.Stream})
	}
	for a, c := range of {
		services, streams := a.importLists(n)
		for _, subject := range services {
			c.Imports.Add(&jwt.Import{Name: subject, Subject: jwt.Subject(subject), Account: of[LogAccount].Subject, Type: jwt.Service, Share: true})
		}
		for _, subject := range streams {
			c.Imports.Add(&jwt.Import{Name: subject, Subject: jwt.Subject(subject), Account: of[LogAccount].Subject, Type: jwt.Stream})
		}
	}
	return all, nil
}

func (p Permissions) toClaims() (c jwt.Permissions) {
	c.Pub.Allow, c.Pub.Deny, c.Sub.Allow = p.Publish, p.Except, p.Subscribe
	if len(p.Publish) == 0 {
		c.Pub.Deny.Add(">") // to the server an empty list is one of all subjects
	}
	if p.Replies {
		c.Resp = &jwt.ResponsePermission{MaxMsgs: jwt.NoLimit, Expires: time.Minute}
	}
	return c
}

func newPair(create func() (nkeys.KeyPair, error)) (nkeys.KeyPair, string, error) {
	k, err := create()
	if err != nil {
		return nil, "", fmt.Errorf("access: make a key: %w", err)
	}
	public, err := k.PublicKey()
	if err != nil {
		return nil, "", fmt.Errorf("access: make a key: %w", err)
	}
	return k, public, nil
}

// Account returns the public key of an account.
func (k Keys) Account(a Account) (string, error) {
	_, public, err := fromSeed(a.SeedName(), k.Seeds[a.SeedName()])
	return public, err
}

// User is the user that credentials are for.
type User struct {
	Name string
	Role Role
	Run  string        // of a guest: the run that it reads
	For  time.Duration // how long they are good; 0: for ever
}

// Check says what is wrong with a user.
func (u User) Check() error {
	switch account, err := u.Role.Account(); {
	case err != nil:
		return err
	case u.Run == "" && account == Guests:
		return fmt.Errorf("access: a %s is of one run", u.Role)
	case u.Run != "" && account != Guests:
		return fmt.Errorf("access: only a %s is of one run, and %s is another role", Guest, u.Role)
	default:
		return nil
	}
}

// Seeds names the seeds in [Keys] that it takes to make credentials of the user.
func (u User) Seeds() ([]string, error) {
	a, err := u.Role.Account()
	return []string{string(u.Role), a.SeedName()}, err
}

// Credentials makes the credentials of a user, the contents of a .creds file. Of the
// keys' seeds those that [User.Seeds] names are enough.
func (k Keys) Credentials(u User) ([]byte, error) {
	if err := u.Check(); err != nil {
		return nil, err
	}
	user, public, err := newPair(nkeys.CreateUser)
	if err != nil {
		return nil, err
	}
	return k.signUser(u, user, public)
}

func (k Keys) signUser(u User, user nkeys.KeyPair, public string) ([]byte, error) {
	a, err := u.Role.Account()
	if err != nil {
		return nil, err
	}
	account, err := k.Account(a)
	if err != nil {
		return nil, err
	}
	signer, _, err := fromSeed(string(u.Role), k.Seeds[string(u.Role)])
	if err != nil {
		return nil, err
	}
	c := jwt.NewUserClaims(public)
	c.Name, c.IssuerAccount = u.Name, account
	c.Tags.Add(ownInbox)
	if a == LogAccount {
		c.Tags.Add(knowsUser)
	}
	if u.Run != "" {
		c.Tags.Add(runTag + ":" + hex.EncodeToString([]byte(u.Run)))
	}
	c.SetScoped(true)
	if u.For > 0 {
		c.Expires = time.Now().Add(u.For).Unix()
	}
	token, err := c.Encode(signer)
	if err != nil {
		return nil, fmt.Errorf("access: sign: %w", err)
	}
	secret, err := user.Seed()
	if err != nil {
		return nil, fmt.Errorf("access: %w", err)
	}
	return jwt.FormatUserConfig(token, secret)
}

// Inbox returns where the user of the credentials gets answers: the first token of the
// subjects. It is "" for credentials that others have made, unless they limit it.
func Inbox(creds []byte) (string, error) {
	token, err := jwt.ParseDecoratedJWT(creds)
	if err != nil {
		return "", errors.New("it has no JWT of a user")
	}
	c, err := jwt.DecodeUserClaims(token)
	if err != nil {
		return "", errors.New("its JWT is not that of a user")
	}
	for _, s := range c.Sub.Allow {
		if prefix, ok := strings.CutSuffix(s, ".>"); ok && strings.HasPrefix(prefix, "_INBOX") {
			return prefix, nil
		}
	}
	if slices.Contains(c.Tags, ownInbox) {
		return inboxPrefix + c.Subject, nil
	}
	return "", nil
}

// Resign returns credentials with the same user and name in the account that its role
// is in today. Moved is false for those that are good as they are. It fails for
// credentials of a user without a known role.
func (k Keys) Resign(creds []byte) (again []byte, moved bool, err error) {
	token, err := jwt.ParseDecoratedJWT(creds)
	if err != nil {
		return nil, false, errors.New("access: it has no JWT of a user")
	}
	c, err := jwt.DecodeUserClaims(token)
	if err != nil {
		return nil, false, errors.New("access: its JWT is not that of a user")
	}
	user, err := jwt.ParseDecoratedUserNKey(creds)
	if err != nil {
		return nil, false, errors.New("access: it has no key of a user")
	}
	for _, s := range seats {
		_, signs, err := fromSeed(string(s.role), k.Seeds[string(s.role)])
		if err != nil {
			return nil, false, err
		}
		if signs != c.Issuer {
			continue
		}
		account, err := k.Account(s.account)
		if err != nil {
			return nil, false, err
		}
		if c.IssuerAccount == account && (s.account != LogAccount || c.Tags.Contains(knowsUser)) {
			return creds, false, nil
		}
		u := User{Name: c.Name, Role: s.role}
		if s.role == Guest { // else it could ask about all runs
			if u.Run, err = runOf(c.Tags); err != nil {
				return nil, false, err
			}
		}
		if c.Expires > 0 {
			if u.For = time.Until(time.Unix(c.Expires, 0)); u.For <= 0 {
				return creds, false, nil // they are good for nothing any more, and stay so
			}
		}
		again, err := k.signUser(u, user, c.Subject)
		return again, true, err
	}
	return nil, false, errors.New("access: no role has signed it")
}
