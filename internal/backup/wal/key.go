package wal

import (
	"context"
	"errors"
	"fmt"

	"github.com/weirdb/weir/internal/backup/archive"
)

// passphraseKey returns the public key of the identity that a passphrase protects. It creates
// the identity if there is none.
func (s *store) passphraseKey(ctx context.Context, e archive.EncryptionOptions) (string, error) {
	name := s.dir() + keyName
	text, err := readSmall(ctx, s.storage, name)
	if errors.Is(err, archive.ErrNotExist) {
		if _, text, err = e.NewKeyFile(); err == nil {
			err = s.storage.PutNew(ctx, name, text)
		}
		if errors.Is(err, archive.ErrExist) { // another process was faster
			text, err = readSmall(ctx, s.storage, name)
		}
	}
	if err != nil {
		return "", fmt.Errorf("store the log's key: %w", err)
	}
	identity, err := archive.OpenKeyFile(text, e.Passphrase)
	if err != nil {
		return "", fmt.Errorf("key of the log in %s: %w", s.dir(), err)
	}
	return identity.Recipient().String(), nil
}
