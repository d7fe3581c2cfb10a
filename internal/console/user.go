package console

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"fmt"
	"os"
	"slices"
	"strings"
)

// role is what a user may do.
type role string

const (
	viewer    role = "viewer"    // reads
	inspector role = "inspector" // and sees the files of runs
	operator  role = "operator"  // and gives commands
)

// roles may the more the later they come.
var roles = []role{viewer, inspector, operator}

// may reports whether a user has a role, or one that may more.
func (u *user) may(least role) bool { return slices.Index(roles, u.role) >= slices.Index(roles, least) }

// user is one of the persons or programs that have a token of the console.
type user struct {
	name  string
	role  role
	token string
}

// minToken is how long a token in a file of users has to be.
const minToken = 16

// findUsers returns the users: those of the file, or an operator and a viewer with tokens that follow
// from one that is kept.
func (s *Console) findUsers(kept keptAddress) (err error) {
	if s.c.Users != "" {
		s.users, err = readUsers(s.c.Users)
	} else {
		if kept.token == "" {
			kept.token = rand.Text()
		}
		s.users = []user{{role: operator, token: kept.token}, {role: viewer, token: deriveSecret(kept.token, "viewer")}}
	}
	if err != nil {
		return err
	}
	secret := rand.Text() // of a console without an operator: no user may be able to sign links, which also answer
	if first := s.users[0]; first.role == operator {
		secret = first.token
	}
	s.secret = []byte(deriveSecret(secret, "links"))
	return nil
}

// readUsers reads a file of lines NAME ROLE TOKEN. What begins with # is a comment. The first
// operator comes first.
func readUsers(file string) ([]user, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("console: users: %w", err)
	}
	var all []user
	for n, line := range strings.Split(string(b), "\n") {
		f := strings.Fields(line)
		switch {
		case len(f) == 0 || strings.HasPrefix(f[0], "#"):
			continue
		case len(f) != 3 || !slices.Contains(roles, role(f[1])) || len(f[2]) < minToken:
			return nil, fmt.Errorf("console: users: line %d of %s isn't NAME viewer|inspector|operator TOKEN, with a token of %d characters or more", n+1, file, minToken)
		}
		all = append(all, user{f[0], role(f[1]), f[2]})
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("console: users: %s names none", file)
	}
	if i := slices.IndexFunc(all, func(u user) bool { return u.role == operator }); i > 0 {
		all[0], all[i] = all[i], all[0]
	}
	return all, nil
}

// deriveSecret makes a secret of another one, for a purpose.
func deriveSecret(secret, purpose string) string {
	m := hmac.New(sha256.New, []byte(secret))
	m.Write([]byte(purpose))
	return base64.RawURLEncoding.EncodeToString(m.Sum(nil))
}

// userOf finds the user of a token; made is what is made of a token to compare it.
func (s *Console) userOf(given string, made func(user) string) *user {
	var found *user
	for i := range s.users {
		if subtle.ConstantTimeCompare([]byte(made(s.users[i])), []byte(given)) == 1 {
			found = &s.users[i]
		}
	}
	return found
}

func tokenOf(u user) string   { return u.token }
func sessionOf(u user) string { return deriveSecret(u.token, "session") }
