package service_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"log/slog"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"code.wake.dev/wake/internal/natstest"
	"code.wake.dev/wake/internal/service"
)

// certificate makes a certificate that signs itself, in two files.
func certificate(t *testing.T) (cert, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "wake"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	write := func(name, kind string, der []byte) string {
		path := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	return write("cert.pem", "CERTIFICATE", der), write("key.pem", "PRIVATE KEY", secret)
}

func TestTLS(t *testing.T) {
	cert, key := certificate(t)
	pair, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	known := x509.NewCertPool()
	known.AddCert(pair.Leaf)
	s := natstest.Serve(t, &server.Options{
		Host: "127.0.0.1", Port: server.RANDOM_PORT, TLS: true, TLSVerify: true, TLSTimeout: 5,
		TLSConfig: &tls.Config{Certificates: []tls.Certificate{pair}, ClientCAs: known, ClientAuth: tls.RequireAndVerifyClientCert, MinVersion: tls.VersionTLS13},
	})
	empty := filepath.Join(t.TempDir(), "empty.pem")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name       string
		tls        service.TLS
		code, text string
	}{
		{name: "all there", tls: service.TLS{CA: cert, Cert: cert, Key: key}},
		{"who signed is unknown", service.TLS{Cert: cert, Key: key}, service.CodeUnauthorized, "certificate signed by unknown authority"},
		{"no file", service.TLS{CA: "/nowhere/ca.pem"}, service.CodeUsage, "--tls-ca: open /nowhere/ca.pem"},
		{"empty file", service.TLS{CA: empty}, service.CodeUsage, "has no certificate in PEM"},
		{"no key", service.TLS{CA: cert, Cert: cert}, service.CodeUsage, "belong together"},
		{"no key in the file", service.TLS{CA: cert, Cert: cert, Key: empty}, service.CodeUsage, "--tls-cert"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			nc, err := service.Server{URL: s.ClientURL(), Timeout: 5 * time.Second, TLS: tt.tls}.Connect(t.Context(), slog.New(slog.DiscardHandler))
			if err == nil {
				nc.Close()
			}
			var problem *service.Error
			switch {
			case tt.code == "":
				if err != nil {
					t.Error(err)
				}
			case !errors.As(err, &problem) || problem.Code != tt.code || !strings.Contains(err.Error(), tt.text):
				t.Errorf("error %v, want %s with %q", err, tt.code, tt.text)
			}
		})
	}
}

// A certificate that is renewed in its files is the one of the next connection; half of a renewal changes nothing, and is told of once.
func TestKeyPairIsRenewed(t *testing.T) {
	cert, key := certificate(t)
	nextCert, nextKey := certificate(t)
	synctest.Test(t, func(t *testing.T) {
		var said strings.Builder
		k, err := service.LoadKeyPair(cert, key, slog.New(slog.NewTextHandler(&said, nil)))
		if err != nil {
			t.Fatal(err)
		}
		later := func() string {
			<-time.After(time.Minute)
			got, err := k.Certificate(nil)
			if err != nil {
				t.Fatal(err)
			}
			return string(got.Certificate[0])
		}
		first := later()
		if err := os.Rename(nextCert, cert); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if later() != first {
				t.Error("a certificate without its key was taken")
			}
		}
		if err := os.Rename(nextKey, key); err != nil {
			t.Fatal(err)
		}
		second := later()
		if second == first {
			t.Error("the renewed certificate wasn't taken")
		}
		if err := os.Remove(cert); err != nil {
			t.Fatal(err)
		}
		if later() != second {
			t.Error("the certificate went with its file")
		}
		if strings.Count(said.String(), "isn't renewed") != 2 || strings.Count(said.String(), "was renewed") != 1 {
			t.Errorf("it is told:\n%s", said.String())
		}
	})
}

// Logs in JSON say how long something took as people read it.
func TestLogTellsSpans(t *testing.T) {
	var b strings.Builder
	service.NewLogger(&b, slog.LevelInfo).Info("it is back", "after", 90*time.Second)
	if !strings.Contains(b.String(), `"after":"1m30s"`) {
		t.Error(b.String())
	}
}
