package console

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"code.wake.dev/wake/internal/durable"
)

// The ports that are tried if none is asked for. Beyond them, any.
const (
	firstPort = 7070
	lastPort  = 7099
)

// keptAddress is what a data directory knows of its console: pages that are open find it again.
type keptAddress struct {
	port  int
	token string
}

// readAddress reads what is kept; nothing if that can't be read.
func readAddress(file string) (k keptAddress) {
	b, err := os.ReadFile(file)
	if err != nil {
		return k
	}
	u, err := url.Parse(strings.TrimSpace(string(b)))
	if err != nil {
		return k
	}
	k.port, _ = strconv.Atoi(u.Port())
	k.token, _ = strings.CutPrefix(u.Fragment, "token=")
	return k
}

// writeAddress keeps the address. The file is as secret as the token in it.
func (s *Console) writeAddress() error {
	if s.c.File == "" {
		return nil
	}
	err := os.MkdirAll(filepath.Dir(s.c.File), 0o700)
	if err == nil {
		err = durable.Write(s.c.File, []byte(s.URL()+"\n"), 0o600)
	}
	if err != nil {
		return fmt.Errorf("console: keep the address: %w", err)
	}
	return nil
}

// hostOf is the first name or address of a certificate by which others may reach this machine. By another one no client would
// trust it.
func hostOf(pair *tls.Certificate) string {
	leaf, err := x509.ParseCertificate(pair.Certificate[0])
	if err != nil {
		return "localhost"
	}
	names := leaf.DNSNames
	for _, ip := range leaf.IPAddresses {
		names = append(names, ip.String())
	}
	for _, name := range names {
		if !IsLoopback(name) && !strings.Contains(name, "*") {
			return name
		}
	}
	return "localhost"
}

// listenNear listens on an address. Port 0 is the kept one, or the first free one.
func listenNear(addr string, kept int) (net.Listener, error) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, err
	}
	if port != "0" {
		return net.Listen("tcp", addr)
	}
	try := []int{}
	if kept > 0 {
		try = append(try, kept)
	}
	for p := firstPort; p <= lastPort; p++ {
		try = append(try, p)
	}
	for _, p := range append(try, 0) {
		var l net.Listener
		if l, err = net.Listen("tcp", net.JoinHostPort(host, strconv.Itoa(p))); err == nil || !errors.Is(err, syscall.EADDRINUSE) {
			return l, err
		}
	}
	return nil, err
}
