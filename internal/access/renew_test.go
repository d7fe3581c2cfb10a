package access_test

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nkeys"

	"code.wake.dev/wake/internal/access"
	"code.wake.dev/wake/internal/topology"
	"code.wake.dev/wake/pkg/subjects"
)

// older returns keys as they were made when there was one account and nobody kept the
// operator's, and credentials of some of its users: of a runner, of an operator and, signed by the key of the
// account itself, of a guest that could read one run.
func older(t *testing.T) (keys access.Keys, creds map[string][]byte) {
	t.Helper()
	pair := func(create func() (nkeys.KeyPair, error)) (nkeys.KeyPair, string, []byte) {
		k, err := create()
		if err != nil {
			t.Fatal(err)
		}
		public, err := k.PublicKey()
		if err != nil {
			t.Fatal(err)
		}
		seed, err := k.Seed()
		if err != nil {
			t.Fatal(err)
		}
		return k, public, seed
	}
	keys.Seeds = map[string][]byte{}
	operator, operatorKey, _ := pair(nkeys.CreateOperator)
	_, systemKey, _ := pair(nkeys.CreateAccount)
	account, accountKey, seed := pair(nkeys.CreateAccount)
	keys.Seeds["account"] = seed
	oc := jwt.NewOperatorClaims(operatorKey)
	oc.Name, oc.SystemAccount = "wake", systemKey
	sc := jwt.NewAccountClaims(systemKey)
	ac := jwt.NewAccountClaims(accountKey)
	ac.Limits.JetStreamLimits = jwt.JetStreamLimits{DiskStorage: jwt.NoLimit, Streams: jwt.NoLimit, Consumer: jwt.NoLimit}
	signers := map[string]nkeys.KeyPair{"guest": account}
	for _, role := range []string{"init", "runner", "operator"} {
		k, public, seed := pair(nkeys.CreateAccount)
		keys.Seeds[role], signers[role] = seed, k
		scope := jwt.NewUserScope()
		scope.Key, scope.Role = public, role
		scope.Template.Pub.Allow.Add("$JS.API.>", "wake.>")
		ac.SigningKeys.AddScopedSigner(scope)
	}
	creds = map[string][]byte{}
	for role, signer := range signers {
		_, public, seed := pair(nkeys.CreateUser)
		c := jwt.NewUserClaims(public)
		c.Name, c.IssuerAccount = role, accountKey
		c.Tags.Add("own-inbox")
		c.SetScoped(role != "guest")
		token, err := c.Encode(signer)
		if err != nil {
			t.Fatal(err)
		}
		if creds[role], err = jwt.FormatUserConfig(token, seed); err != nil {
			t.Fatal(err)
		}
	}
	var tokens []any
	for _, c := range []jwt.Claims{oc, sc, ac} {
		token, err := c.Encode(operator)
		if err != nil {
			t.Fatal(err)
		}
		tokens = append(tokens, token)
	}
	keys.Conf = fmt.Sprintf("operator: %[2]s\nsystem_account: %[1]s\nresolver: MEMORY\nresolver_preload: {\n  %[1]s: %[3]s\n  "+accountKey+": %[4]s\n}\n", append([]any{systemKey}, tokens...)...)
	return keys, creds
}

// An installation of one account gets the others. What is stored stays, services go on with the credentials
// that they have, and nobody else has more than their role.
func TestRenew(t *testing.T) {
	s := &site{t: t}
	var creds map[string][]byte
	s.keys, creds = older(t)
	dir := t.TempDir()
	s.start(dir, "")
	nc, _ := s.connectWith(creds["init"])
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := topology.Init(t.Context(), js, topology.Config{Names: subjects.Default}); err != nil {
		t.Fatal(err)
	}
	if _, err := js.Publish(t.Context(), "wake.events.mine.a.flow", []byte("kept")); err != nil {
		t.Fatal(err)
	}
	nc.Close()
	s.servers[0].Shutdown()
	s.servers[0].WaitForShutdown()
	s.servers = nil

	before := s.keys
	if s.keys, err = before.Renew(subjects.Default); err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{"system_account"} { // servers of a cluster find each other by it
		if setting(before.Conf, line) != setting(s.keys.Conf, line) {
			t.Errorf("%s is another one", line)
		}
	}
	s.start(dir, "")
	nc, _ = s.connectWith(creds["runner"])
	if js, err = jetstream.New(nc); err != nil {
		t.Fatal(err)
	}
	stream, err := js.Stream(t.Context(), "WAKE_EVENTS")
	if err != nil {
		t.Fatal(err)
	}
	if m, err := stream.GetMsg(t.Context(), 1); err != nil || string(m.Data) != "kept" {
		t.Fatalf("the stream has %v, %v", m, err)
	}
	if _, err := nats.Connect(s.servers[0].ClientURL(), userClaims(t, creds["guest"])); err == nil {
		t.Error("the key of the account signs users")
	}
	if _, _, err := s.keys.Resign(creds["guest"]); err == nil {
		t.Error("a user without role got one")
	}
	again, err := s.keys.Renew(subjects.Default)
	if err != nil {
		t.Fatal(err)
	}
	for name, seed := range s.keys.Seeds {
		if string(again.Seeds[name]) != string(seed) {
			t.Errorf("seed %s is another one", name)
		}
	}
}

// TestResign checks that a user that is in another account now keeps name and key.
func TestResign(t *testing.T) {
	keys, creds := older(t)
	keys, err := keys.Renew(subjects.Default)
	if err != nil {
		t.Fatal(err)
	}
	for role, c := range creds {
		again, moved, err := keys.Resign(c)
		if role == "guest" {
			continue
		}
		if err != nil || !moved {
			t.Errorf("%s: %v, moved %t", role, err, moved)
			continue
		}
		if a, b := userOf(t, c), userOf(t, again); a.Subject != b.Subject || a.Name != b.Name {
			t.Errorf("%s: %v became %v", role, a, b)
		}
		if _, moved, err := keys.Resign(again); err != nil || moved {
			t.Errorf("%s: moved twice, %v", role, err)
		}
	}
}

func userOf(t *testing.T, creds []byte) *jwt.UserClaims {
	t.Helper()
	token, err := jwt.ParseDecoratedJWT(creds)
	if err != nil {
		t.Fatal(err)
	}
	c, err := jwt.DecodeUserClaims(token)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// A folder whose keys aren't those of its configuration isn't renewed: the streams
// would be lost.
func TestRenewOfOthers(t *testing.T) {
	keys, _ := older(t)
	others, _ := older(t)
	for name, k := range map[string]access.Keys{
		"no keys":        {Conf: keys.Conf},
		"others' keys":   {Conf: keys.Conf, Seeds: others.Seeds},
		"no operator":    {Conf: strings.Replace(keys.Conf, "operator:", "x:", 1), Seeds: keys.Seeds},
		"no system":      {Conf: strings.Replace(keys.Conf, "system_account:", "x:", 1), Seeds: keys.Seeds},
		"a broken seed":  {Conf: keys.Conf, Seeds: map[string][]byte{"account": []byte("x")}},
		"something else": {Conf: "listen: 4222", Seeds: keys.Seeds},
	} {
		if _, err := k.Renew(subjects.Default); err == nil {
			t.Errorf("%s: it is renewed", name)
		}
	}
	team, err := subjects.New("team")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := keys.Renew(team); err == nil {
		t.Error("it is that of another prefix")
	}
}

func setting(conf, name string) string {
	_, rest, _ := strings.Cut(conf, name+": ")
	value, _, _ := strings.Cut(rest, "\n")
	return value
}

// Credentials that have expired aren't good for ever when their folder gets new keys: they stay as they are.
func TestResignExpired(t *testing.T) {
	keys, creds := older(t)
	renewed, err := keys.Renew(subjects.Default)
	if err != nil {
		t.Fatal(err)
	}
	for role, c := range creds {
		if role == "guest" {
			continue
		}
		claims := userOf(t, c)
		user, err := jwt.ParseDecoratedUserNKey(c)
		if err != nil {
			t.Fatal(err)
		}
		seed, err := user.Seed()
		if err != nil {
			t.Fatal(err)
		}
		signer, err := nkeys.FromSeed(renewed.Seeds[role])
		if err != nil {
			t.Fatal(err)
		}
		claims.Expires = time.Now().Add(-time.Hour).Unix()
		token, err := claims.Encode(signer)
		if err != nil {
			t.Fatal(err)
		}
		expired, err := jwt.FormatUserConfig(token, seed)
		if err != nil {
			t.Fatal(err)
		}
		if again, moved, err := renewed.Resign(expired); err != nil || moved || !bytes.Equal(again, expired) {
			t.Errorf("%s: moved %t, %v", role, moved, err)
		}
	}
}
