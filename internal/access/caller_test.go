package access_test

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"

	"code.wake.dev/wake/internal/access"
	"code.wake.dev/wake/pkg/subjects"
)

// A caller is who the server names, and of no run or of one; in doubt the request is refused.
func TestReadCaller(t *testing.T) {
	for header, want := range map[string]access.Caller{
		`{"user":"UA","name_tag":"ann","tags":["own-inbox"]}`:                      {Name: "ann", Key: "UA"},
		`{"user":"UA","name_tag":"ann"}`:                                           {Name: "ann", Key: "UA"},
		`{"user":"UG","name_tag":"gus","tags":["own-inbox","run:4d696e65"]}`:       {Name: "gus", Key: "UG", Run: "Mine"},
		`{"user":"UG","name_tag":"gus","tags":["runs:00","run","x:run:4d696e65"]}`: {Name: "gus", Key: "UG"},
	} {
		if c, err := access.ReadCaller(header); err != nil || c != want {
			t.Errorf("%s: %+v, %v", header, c, err)
		}
	}
	for _, header := range []string{
		"", "ann", `{}`, `[]`, `{"name_tag":"ann"}`, `{"user":7}`, `{"user":"UA","tags":"run:00"}`, `{"user":"UA","tags":["knows-users"]}`,
		`{"user":"UA","tags":["run:"]}`, `{"user":"UA","tags":["run:mine"]}`, `{"user":"UA","tags":["run:4d6"]}`, `{"user":"UA","tags":["run:4d696e65","run:4d696e65"]}`,
	} {
		if c, err := access.ReadCaller(header); err == nil {
			t.Errorf("%s: %+v", header, c)
		}
	}
}

// offline is a connection with credentials, nil for none, that isn't connected.
func offlineConn(t *testing.T, creds []byte) *nats.Conn {
	t.Helper()
	nc := new(nats.Conn)
	if creds == nil {
		return nc
	}
	token, err := jwt.ParseDecoratedJWT(creds)
	if err != nil {
		t.Fatal(err)
	}
	nc.Opts.UserJWT = func() (string, error) { return token, nil }
	return nc
}

// What a connection may do is told from its credentials: the run of a guest, who has no streams, and which service it is.
func TestConnectionsTellTheirRole(t *testing.T) {
	keys, err := access.Keys{}.Renew(subjects.Default)
	if err != nil {
		t.Fatal(err)
	}
	type told struct {
		Run, WithoutStreams, Service string
		Knows                        bool
	}
	tell := func(nc *nats.Conn) (got told, err error) {
		var errs [4]error
		got.Run, errs[0] = access.OwnRun(nc)
		got.WithoutStreams, errs[1] = access.WithoutStreams(nc)
		got.Service, errs[2] = access.NameService(nc)
		got.Knows, errs[3] = access.KnowsUsers(nc)
		for _, err := range errs {
			if (err == nil) != (errs[0] == nil) {
				t.Errorf("errors %v", errs)
			}
		}
		return got, errors.Join(errs[:]...)
	}
	for _, tt := range []struct {
		user access.User
		want told
	}{
		{access.User{Name: "gus", Role: access.Guest, Run: "Mine"}, told{Run: "Mine", WithoutStreams: "gus"}},
		{access.User{Name: "vic", Role: access.Viewer}, told{WithoutStreams: "vic"}},
		{access.User{Name: "ann", Role: access.Operator}, told{WithoutStreams: "ann"}},
		{access.User{Name: `r"1`, Role: access.Runner}, told{Service: "r", Knows: true}},
		{access.User{Name: "up", Role: access.Up}, told{Service: "up", Knows: true}},
	} {
		creds, err := keys.Credentials(tt.user)
		if err != nil {
			t.Fatal(err)
		}
		got, err := tell(offlineConn(t, creds))
		if err != nil {
			t.Fatal(err)
		}
		if tt.want.Service != "" {
			c, err := access.ReadCaller(got.Service)
			if err != nil || c.Name != tt.user.Name || c.Key != userOf(t, creds).Subject {
				t.Errorf("%s names itself %s", tt.user.Name, got.Service)
			}
			got.Service = tt.want.Service
		}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.user.Name, diff)
		}
	}
	if got, err := tell(offlineConn(t, nil)); err != nil || got != (told{}) {
		t.Errorf("without credentials: %+v, %v", got, err)
	}
	if got, err := tell(offlineConn(t, foreignCreds(t))); err != nil || got != (told{}) {
		t.Errorf("with others' credentials: %+v, %v", got, err)
	}
	for name, user := range map[string]nats.UserJWTHandler{
		"no file": func() (string, error) { return "", errors.New("no file") },
		"no JWT":  func() (string, error) { return "x.y.z", nil },
	} {
		nc := new(nats.Conn)
		nc.Opts.UserJWT = user
		if got, err := tell(nc); err == nil || got != (told{}) {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
}

// foreignCreds are credentials that wake hasn't made.
func foreignCreds(t *testing.T) []byte {
	t.Helper()
	account, err := nkeys.CreateAccount()
	if err != nil {
		t.Fatal(err)
	}
	user, err := nkeys.CreateUser()
	if err != nil {
		t.Fatal(err)
	}
	public, err := user.PublicKey()
	if err != nil {
		t.Fatal(err)
	}
	seed, err := user.Seed()
	if err != nil {
		t.Fatal(err)
	}
	c := jwt.NewUserClaims(public)
	c.Name = "other"
	token, err := c.Encode(account)
	if err != nil {
		t.Fatal(err)
	}
	creds, err := jwt.FormatUserConfig(token, seed)
	if err != nil {
		t.Fatal(err)
	}
	return creds
}

// Each role's credentials are signed by its own key, and by the seeds that they are said to need alone.
func TestCredentialsNeedTheirSeeds(t *testing.T) {
	keys, err := access.Keys{}.Renew(subjects.Default)
	if err != nil {
		t.Fatal(err)
	}
	issuers := map[string]access.Role{}
	for _, role := range access.Roles() {
		u := access.User{Name: "x", Role: role}
		if role == access.Guest {
			u.Run = "r"
		}
		names, err := u.Seeds()
		if err != nil {
			t.Fatal(err)
		}
		few := access.Keys{Seeds: map[string][]byte{}}
		for _, name := range names {
			few.Seeds[name] = keys.Seeds[name]
		}
		creds, err := few.Credentials(u)
		if err != nil {
			t.Errorf("%s: %v", role, err)
			continue
		}
		c := userOf(t, creds)
		if other, taken := issuers[c.Issuer]; taken {
			t.Errorf("%s and %s are signed by one key", role, other)
		}
		issuers[c.Issuer] = role
		if c.Expires != 0 || c.Name != "x" || bytes.Contains(creds, keys.Seeds[names[0]]) {
			t.Errorf("%s: %+v", role, c)
		}
		for _, name := range names {
			without := access.Keys{Seeds: map[string][]byte{}}
			for _, other := range names {
				if other != name {
					without.Seeds[other] = keys.Seeds[other]
				}
			}
			if _, err := without.Credentials(u); err == nil {
				t.Errorf("%s: made without the seed %s", role, name)
			}
		}
	}
}

// A server shows a certificate for its hosts alone, that whoever knows the authority trusts, as a server and among servers; it signs no others.
func TestCertificatesOfHosts(t *testing.T) {
	c, err := access.NewCertificates("wake", []string{"nats.example", "10.0.0.7", "::1"})
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.X509KeyPair(c.Server, c.ServerKey)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tls.X509KeyPair(c.CA, c.CAKey); err != nil {
		t.Error(err)
	}
	if _, err := tls.X509KeyPair(c.Server, c.CAKey); err == nil {
		t.Error("servers have the authority's key")
	}
	leaf, err := x509.ParseCertificate(pair.Certificate[0])
	if err != nil {
		t.Fatal(err)
	}
	verify := func(cert *x509.Certificate, ca []byte, host string, use x509.ExtKeyUsage) error {
		roots := x509.NewCertPool()
		if !roots.AppendCertsFromPEM(ca) {
			t.Fatal("the authority can't be read")
		}
		_, err := cert.Verify(x509.VerifyOptions{Roots: roots, DNSName: host, KeyUsages: []x509.ExtKeyUsage{use}})
		return err
	}
	for _, host := range []string{"nats.example", "10.0.0.7", "::1", "[::1]"} {
		for _, use := range []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth} {
			if err := verify(leaf, c.CA, host, use); err != nil {
				t.Errorf("%s: %v", host, err)
			}
		}
	}
	for _, host := range []string{"example", "other.example", "10.0.0.8", "wake"} {
		if verify(leaf, c.CA, host, x509.ExtKeyUsageServerAuth) == nil {
			t.Errorf("it is for %s, too", host)
		}
	}
	if leaf.IsCA || verify(leaf, c.CA, "nats.example", x509.ExtKeyUsageCodeSigning) == nil {
		t.Error("it may do more than that")
	}
	other, err := access.NewCertificates("wake", []string{"nats.example"})
	if err != nil {
		t.Fatal(err)
	}
	if verify(leaf, other.CA, "nats.example", x509.ExtKeyUsageServerAuth) == nil {
		t.Error("another installation's authority vouches for it")
	}
}

// The name of a service is JSON, whatever the name is.
func TestServiceNameIsJSON(t *testing.T) {
	keys, err := access.Keys{}.Renew(subjects.Default)
	if err != nil {
		t.Fatal(err)
	}
	creds, err := keys.Credentials(access.User{Name: `","user":"UKING`, Role: access.Runner})
	if err != nil {
		t.Fatal(err)
	}
	header, err := access.NameService(offlineConn(t, creds))
	if err != nil || !json.Valid([]byte(header)) {
		t.Fatalf("%s, %v", header, err)
	}
	if c, err := access.ReadCaller(header); err != nil || c.Key != userOf(t, creds).Subject {
		t.Errorf("%+v, %v", c, err)
	}
}
