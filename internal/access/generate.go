package access

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nkeys"

	"wake/pkg/subjects"
)

// inboxPrefix is what the inboxes of a user begin with; the rest is its public key.
const inboxPrefix = "_INBOX_"

// ownInbox is a tag of users whose role, which their tokens don't show, has them get
// answers nowhere else.
const ownInbox = "own-inbox"

// Keys are what makes an installation's users. What a role may do is in the account,
// under a key that signs users of that role and no others: so a user's token stays
// small, and whoever loses such a key has lost no more than that role.
type Keys struct {
	Conf  string            // for the server: operator and accounts
	Seeds map[string][]byte // by role; that of AccountKey signs users of any permissions
}

// AccountKey names the seed in [Keys] that may sign everything.
const AccountKey = "account"

// NewKeys makes the operator, the system account and the account of an installation.
// The private key of the operator isn't kept: nothing is to be signed with it again.
func NewKeys(n subjects.Names) (Keys, error) {
	k := Keys{Seeds: map[string][]byte{}}
	operator, operatorKey, err := pair(nkeys.CreateOperator)
	if err != nil {
		return k, err
	}
	_, systemKey, err := pair(nkeys.CreateAccount)
	if err != nil {
		return k, err
	}
	account, err := k.account(n)
	if err != nil {
		return k, err
	}
	oc := jwt.NewOperatorClaims(operatorKey)
	oc.Name, oc.SystemAccount = n.Prefix(), systemKey
	sc := jwt.NewAccountClaims(systemKey)
	sc.Name = "SYS"
	var signed [3]string
	for i, c := range []jwt.Claims{oc, sc, account} {
		if signed[i], err = c.Encode(operator); err != nil {
			return k, fmt.Errorf("access: sign: %w", err)
		}
	}
	k.Conf = fmt.Sprintf(`# Made by wake auth generate. There is nothing secret in it.
operator: %s
system_account: %s
resolver: MEMORY
resolver_preload: {
  %s: %s
  %s: %s
}
`, signed[0], systemKey, systemKey, signed[1], account.Subject, signed[2])
	return k, nil
}

// account makes the account that has the streams, with a signing key for each role.
func (k *Keys) account(n subjects.Names) (*jwt.AccountClaims, error) {
	key, public, err := pair(nkeys.CreateAccount)
	if err != nil {
		return nil, err
	}
	if k.Seeds[AccountKey], err = key.Seed(); err != nil {
		return nil, fmt.Errorf("access: %w", err)
	}
	c := jwt.NewAccountClaims(public)
	c.Name = "WAKE"
	c.Limits.JetStreamLimits = jwt.JetStreamLimits{DiskStorage: jwt.NoLimit, Streams: jwt.NoLimit, Consumer: jwt.NoLimit}
	for _, r := range Roles() {
		signer, signs, err := pair(nkeys.CreateAccount)
		if err != nil {
			return nil, err
		}
		if k.Seeds[string(r)], err = signer.Seed(); err != nil {
			return nil, fmt.Errorf("access: %w", err)
		}
		p, err := r.Permissions(n, "", inboxPrefix+"{{subject()}}")
		if err != nil {
			return nil, err
		}
		scope := jwt.NewUserScope()
		scope.Key, scope.Role, scope.Template.Permissions = signs, string(r), p.claims()
		c.SigningKeys.AddScopedSigner(scope)
	}
	return c, nil
}

func (p Permissions) claims() (c jwt.Permissions) {
	c.Pub.Allow, c.Pub.Deny, c.Sub.Allow = p.Publish, p.Except, p.Subscribe
	if p.Replies {
		c.Resp = &jwt.ResponsePermission{MaxMsgs: jwt.NoLimit, Expires: time.Minute}
	}
	return c
}

func pair(create func() (nkeys.KeyPair, error)) (nkeys.KeyPair, string, error) {
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

// User is whom credentials are for.
type User struct {
	Name string
	Role Role
	Run  string        // of a viewer: the only run that it sees; "": all
	For  time.Duration // how long they are good; 0: for ever
}

// SignedBy names the seed in [Keys] that makes the user's credentials.
func (u User) SignedBy() string {
	if u.Run != "" {
		return AccountKey // no role knows the run
	}
	return string(u.Role)
}

// Credentials makes the credentials of a user of an account, the contents of a .creds
// file. Seed is the one that [User.SignedBy] names.
func Credentials(n subjects.Names, account string, seed []byte, u User) ([]byte, error) {
	signer, err := nkeys.FromSeed(seed)
	if err != nil {
		return nil, fmt.Errorf("access: seed: %w", err)
	}
	user, public, err := pair(nkeys.CreateUser)
	if err != nil {
		return nil, err
	}
	c := jwt.NewUserClaims(public)
	c.Name, c.IssuerAccount = u.Name, account
	c.Tags.Add(ownInbox)
	if u.Run == "" {
		c.SetScoped(true)
	} else {
		p, err := u.Role.Permissions(n, u.Run, inboxPrefix+public)
		if err != nil {
			return nil, err
		}
		c.Permissions = p.claims()
	}
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

// Account returns the public key of the account of a seed of [AccountKey].
func Account(seed []byte) (string, error) {
	k, err := nkeys.FromSeed(seed)
	if err != nil {
		return "", fmt.Errorf("access: seed of the account: %w", err)
	}
	return k.PublicKey()
}

// Inbox returns where whoever has the credentials gets answers: the first token of the
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
