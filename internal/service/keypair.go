package service

import (
	"crypto/tls"
	"log/slog"
	"os"
	"sync"
	"time"
)

// KeyPair is a server's certificate in PEM files. It follows the files: a certificate that is renewed there is the one that the next
// connection gets. Files that can't be read, or don't belong together yet, change nothing, and are told of.
type KeyPair struct {
	files  [2]string // of the certificate, of its key
	logger *slog.Logger

	mu     sync.Mutex
	pair   *tls.Certificate
	states [2]os.FileInfo // of the files that it was read from
	looked time.Time
	failed string // why the files can't be used, as it was logged; "": they can
}

// pairEvery is how often the files are looked at, at most.
const pairEvery = time.Second

// LoadKeyPair reads a certificate.
func LoadKeyPair(cert, key string, logger *slog.Logger) (*KeyPair, error) {
	k := &KeyPair{files: [2]string{cert, key}, logger: logger}
	return k, k.readFiles()
}

// Certificate is for [tls.Config.GetCertificate].
func (k *KeyPair) Certificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if time.Since(k.looked) >= pairEvery && k.isRenewed() {
		k.readAgain()
	}
	return k.pair, nil
}

// readAgain reads the files when they have changed. If that fails, the pair stays the one that was read last.
func (k *KeyPair) readAgain() {
	failed := ""
	if err := k.readFiles(); err != nil {
		failed = err.Error()
	}
	switch failed {
	case "":
		k.logger.Info("a certificate was renewed", "file", k.files[0])
	case k.failed: // it was told
	default:
		k.logger.Warn("a certificate isn't renewed: the one from before is used until its files are right", "file", k.files[0], "key", k.files[1], "error", failed)
	}
	k.failed = failed
}

func (k *KeyPair) isRenewed() bool {
	k.looked = time.Now()
	for i, file := range k.files {
		now, err := os.Stat(file)
		if err != nil || !os.SameFile(now, k.states[i]) || !now.ModTime().Equal(k.states[i].ModTime()) || now.Size() != k.states[i].Size() {
			return true
		}
	}
	return false
}

func (k *KeyPair) readFiles() error {
	var states [2]os.FileInfo
	for i, file := range k.files {
		info, err := os.Stat(file)
		if err != nil {
			return err
		}
		states[i] = info
	}
	pair, err := tls.LoadX509KeyPair(k.files[0], k.files[1])
	if err == nil {
		k.pair, k.states = &pair, states
	}
	return err
}
