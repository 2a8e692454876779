package wal

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"filippo.io/age"

	"github.com/weirdb/weir/internal/backup/archive"
)

// A passphrase is slow on purpose, about a second: too slow for each file of log.
// It opens one key pair of the cluster, and files are encrypted to that.

// keyWork is the logarithm of a passphrase's cost: about a second. Tests, which the
// race detector slows down thirty times, lower it.
var keyWork = 18

// passphraseKey returns the public key that a passphrase opens, and makes the pair
// if there is none yet.
func (s *store) passphraseKey(ctx context.Context, passphrase string) (string, error) {
	name := s.dir() + keyName
	text, err := readSmall(ctx, s.storage, name)
	if errors.Is(err, archive.ErrNotExist) {
		text, err = newKey(passphrase)
		if err == nil {
			err = s.storage.PutNew(ctx, name, text)
		}
		if errors.Is(err, archive.ErrExist) { // another one was faster
			text, err = readSmall(ctx, s.storage, name)
		}
	}
	if err != nil {
		return "", fmt.Errorf("keep key of log: %w", err)
	}
	identity, err := openKey(text, passphrase)
	if err != nil {
		return "", fmt.Errorf("open %s: %w", name, err)
	}
	return identity.Recipient().String(), nil
}

// newKey makes a key pair and encrypts its private half with the passphrase: an
// ordinary age file with an ordinary age identity in it.
func newKey(passphrase string) ([]byte, error) {
	identity, err := age.GenerateX25519Identity()
	if err != nil {
		return nil, err
	}
	slow, err := age.NewScryptRecipient(passphrase)
	if err != nil {
		return nil, err
	}
	slow.SetWorkFactor(keyWork)
	var file bytes.Buffer
	w, err := age.Encrypt(&file, slow)
	if err != nil {
		return nil, err
	}
	if _, err := io.WriteString(w, identity.String()+"\n"); err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return file.Bytes(), nil
}

// openKey is the inverse of newKey.
func openKey(file []byte, passphrase string) (*age.X25519Identity, error) {
	slow, err := age.NewScryptIdentity(passphrase)
	if err != nil {
		return nil, err
	}
	r, err := age.Decrypt(bytes.NewReader(file), slow)
	if none := (*age.NoIdentityMatchError)(nil); errors.As(err, &none) || errors.Is(err, age.ErrIncorrectIdentity) {
		return nil, fmt.Errorf("%w: check the passphrase", archive.ErrWrongKey)
	}
	if err != nil {
		return nil, err
	}
	text, err := io.ReadAll(io.LimitReader(r, maxCluster))
	if err != nil {
		return nil, err
	}
	return age.ParseX25519Identity(strings.TrimSpace(string(text)))
}
