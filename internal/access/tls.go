package access

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"time"
)

// validity is how long certificates are good. There is no way of renewing them but to
// make new ones, so it is long; an operator with a certificate authority uses that.
const validity = 5 * 365 * 24 * time.Hour

// Certificates are in PEM: of an authority of this installation, and of its servers.
type Certificates struct {
	CA, CAKey, Server, ServerKey []byte
}

// NewCertificates makes an authority and a certificate for servers that are reached
// under the hosts: names or addresses. Servers of a cluster show it to each other too.
func NewCertificates(name string, hosts []string) (c Certificates, err error) {
	now := time.Now()
	root := &x509.Certificate{
		Subject: pkix.Name{CommonName: name + " CA"}, NotBefore: now.Add(-time.Hour), NotAfter: now.Add(validity),
		IsCA: true, BasicConstraintsValid: true, MaxPathLenZero: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
	}
	leaf := &x509.Certificate{
		Subject: pkix.Name{CommonName: name}, NotBefore: now.Add(-time.Hour), NotAfter: now.Add(validity),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	for _, h := range hosts {
		if ip := net.ParseIP(h); ip != nil {
			leaf.IPAddresses = append(leaf.IPAddresses, ip)
		} else {
			leaf.DNSNames = append(leaf.DNSNames, h)
		}
	}
	rootKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return c, fmt.Errorf("access: make a key: %w", err)
	}
	leafKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return c, fmt.Errorf("access: make a key: %w", err)
	}
	if c.CA, err = signCertificate(root, root, &rootKey.PublicKey, rootKey); err != nil {
		return c, err
	}
	if c.Server, err = signCertificate(leaf, root, &leafKey.PublicKey, rootKey); err != nil {
		return c, err
	}
	if c.CAKey, err = keyPEM(rootKey); err != nil {
		return c, err
	}
	c.ServerKey, err = keyPEM(leafKey)
	return c, err
}

func signCertificate(c, by *x509.Certificate, public *ecdsa.PublicKey, key *ecdsa.PrivateKey) ([]byte, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, fmt.Errorf("access: certificate: %w", err)
	}
	c.SerialNumber = serial
	der, err := x509.CreateCertificate(rand.Reader, c, by, public, key)
	if err != nil {
		return nil, fmt.Errorf("access: certificate: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), nil
}

func keyPEM(key *ecdsa.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("access: key: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), nil
}
