package access

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nats.go"
)

// CallerHeader is the header in which the server names the caller, of requests that come
// from another account.
const CallerHeader = "Nats-Request-Info"

// Caller is the user that a request comes from, in the server's words.
type Caller struct {
	Name string // of the credentials
	Key  string // public key of the user
	Run  string // the only run that the user may ask about; "": all
}

// ReadCaller reads the header of a request.
func ReadCaller(header string) (Caller, error) {
	if header == "" {
		return Caller{}, errors.New("access: the server doesn't name the user of the request")
	}
	var info struct {
		User string   `json:"user"`
		Name string   `json:"name_tag"`
		Tags []string `json:"tags"`
	}
	if err := json.Unmarshal([]byte(header), &info); err != nil {
		return Caller{}, fmt.Errorf("access: the user of the request: %w", err)
	}
	c := Caller{Name: info.Name, Key: info.User}
	switch {
	case c.Key == "":
		return c, errors.New("access: the request is of no user")
	case slices.Contains(info.Tags, knowsUser):
		return c, errors.New("access: a service's answer is no question")
	}
	var err error
	c.Run, err = runOf(info.Tags)
	return c, err
}

// runOf returns the run that a user's tags name, "" for none.
func runOf(tags []string) (name string, err error) {
	for _, tag := range tags {
		value, ok := strings.CutPrefix(tag, runTag+":")
		if !ok {
			continue
		}
		run, err := hex.DecodeString(value)
		if err != nil || len(run) == 0 || name != "" {
			return "", errors.New("access: the user is of no run that there can be")
		}
		name = string(run)
	}
	return name, nil
}

// OwnRun returns the only run that a connection's credentials may ask about; "" for all.
func OwnRun(nc *nats.Conn) (string, error) {
	c, err := userClaims(nc)
	if err != nil || c == nil {
		return "", err
	}
	return runOf(c.Tags)
}

// WithoutStreams returns the user's name if a connection's credentials are of a role that asks services and has no streams; ""
// if they may have some. The server refuses each of its questions about streams, which the asker only sees as one without answer.
func WithoutStreams(nc *nats.Conn) (name string, err error) {
	c, err := userClaims(nc)
	if err != nil || c == nil || !c.Tags.Contains(ownInbox) || c.Tags.Contains(knowsUser) { // others' users may do anything
		return "", err
	}
	return c.Name, nil
}

// userClaims returns what a connection's credentials say; nil if it has none.
func userClaims(nc *nats.Conn) (*jwt.UserClaims, error) {
	if nc.Opts.UserJWT == nil {
		return nil, nil
	}
	token, err := nc.Opts.UserJWT()
	if err != nil {
		return nil, fmt.Errorf("access: credentials: %w", err)
	}
	c, err := jwt.DecodeUserClaims(token)
	if err != nil {
		return nil, fmt.Errorf("access: credentials: %w", err)
	}
	return c, nil
}

// NameService is what a service puts into [CallerHeader] when it asks another one: within an account the server names nobody. "" for those
// whom the server names, or that are on a server without users.
func NameService(nc *nats.Conn) (string, error) {
	c, err := userClaims(nc)
	if err != nil || c == nil || !c.Tags.Contains(knowsUser) {
		return "", err
	}
	name, err := json.Marshal(map[string]string{"user": c.Subject, "name_tag": c.Name})
	return string(name), err
}

// KnowsUsers reports whether a connection belongs to a service that users ask from
// accounts of their own.
func KnowsUsers(nc *nats.Conn) (bool, error) {
	c, err := userClaims(nc)
	if err != nil || c == nil {
		return false, err
	}
	return c.Tags.Contains(knowsUser), nil
}
