package archive

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"filippo.io/age"
	"filippo.io/age/agessh"
)

// ageSuffix is the suffix of encrypted files.
const ageSuffix = ".age"

// maxKeyFile limits the size of a key file: an age header and 74 bytes.
const maxKeyFile = 64 << 10

// parseRecipients parses public keys, and returns them also as the manifest lists them: without
// the comment of an SSH key, which often names a person and a host.
func parseRecipients(lines []string) ([]age.Recipient, []string, error) {
	var keys []age.Recipient
	var names []string
	for _, line := range lines {
		line = strings.TrimSpace(line)
		var key age.Recipient
		var err error
		if fields := strings.Fields(line); strings.HasPrefix(line, "ssh-") && len(fields) >= 2 {
			line = fields[0] + " " + fields[1]
			key, err = agessh.ParseRecipient(line)
		} else if strings.HasPrefix(line, "age1pq1") {
			key, err = age.ParseHybridRecipient(line)
		} else {
			key, err = age.ParseX25519Recipient(line)
		}
		if err != nil {
			return nil, nil, fmt.Errorf("recipient %q: %w", line, err)
		}
		keys, names = append(keys, key), append(names, line)
	}
	return keys, names, nil
}

// parseIdentities parses the private keys in the contents of files.
func parseIdentities(files [][]byte) ([]age.Identity, error) {
	var keys []age.Identity
	for i, file := range files {
		if bytes.Contains(file, []byte("-----BEGIN")) {
			key, err := agessh.ParseIdentity(file)
			if err != nil {
				return nil, fmt.Errorf("read SSH private key %d: %w", i+1, err)
			}
			keys = append(keys, key)
			continue
		}
		found, err := age.ParseIdentities(bytes.NewReader(file))
		if err != nil {
			return nil, fmt.Errorf("read age identities %d: %w", i+1, err)
		}
		keys = append(keys, found...)
	}
	return keys, nil
}

// NewKeyFile generates a key pair that e's passphrase protects: an age file with an age
// identity inside. Decrypting with a passphrase is slow on purpose, too slow to do it for each
// file.
func (e EncryptionOptions) NewKeyFile() (*age.X25519Identity, []byte, error) {
	identity, err := age.GenerateX25519Identity()
	if err != nil {
		return nil, nil, fmt.Errorf("make a key: %w", err)
	}
	slow, err := age.NewScryptRecipient(e.Passphrase)
	if err != nil {
		return nil, nil, fmt.Errorf("take the passphrase: %w", err)
	}
	slow.SetWorkFactor(cmp.Or(e.PassphraseWork, 18))
	var file bytes.Buffer
	w, err := age.Encrypt(&file, slow)
	if err == nil {
		_, err = io.WriteString(w, identity.String()+"\n")
	}
	if err == nil {
		err = w.Close()
	}
	if err != nil {
		return nil, nil, fmt.Errorf("encrypt a key: %w", err)
	}
	return identity, file.Bytes(), nil
}

// OpenKeyFile is the inverse of NewKeyFile. With a wrong passphrase it returns ErrWrongKey.
func OpenKeyFile(file []byte, passphrase string) (*age.X25519Identity, error) {
	slow, err := age.NewScryptIdentity(passphrase)
	if err != nil {
		return nil, fmt.Errorf("take the passphrase: %w", err)
	}
	r, err := age.Decrypt(bytes.NewReader(file), slow)
	if err != nil {
		return nil, &Error{Op: "open", Place: keyName, Err: wrongKey(err), Hint: "check the passphrase"}
	}
	text, err := io.ReadAll(io.LimitReader(r, maxKeyFile))
	if err != nil {
		return nil, fmt.Errorf("decrypt %s: %w", keyName, err)
	}
	identity, err := age.ParseX25519Identity(strings.TrimSpace(string(text)))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", keyName, err)
	}
	return identity, nil
}

// wrongKey converts errors of age that mean a wrong key to ErrWrongKey, and returns others
// unchanged.
func wrongKey(err error) error {
	if none := (*age.NoIdentityMatchError)(nil); errors.As(err, &none) || errors.Is(err, age.ErrIncorrectIdentity) {
		return kindError{ErrWrongKey, errors.New("none of the given keys opens it")}
	}
	return err
}

// A sealer encrypts the chunks of a backup.
type sealer struct {
	recipients []age.Recipient
	public     *Encryption
}

// newSealer returns the sealer of a backup, or nil if it is not to be encrypted. With a
// passphrase, addKey must follow.
func newSealer(o EncryptionOptions) (*sealer, error) {
	if !o.Enabled() {
		return nil, nil
	}
	keys, names, err := parseRecipients(o.Recipients)
	if err != nil {
		return nil, err
	}
	e := &sealer{recipients: keys, public: &Encryption{Scheme: "age", Recipients: names}}
	if o.Passphrase != "" {
		e.public.KeyFile = keyName
	}
	return e, nil
}

// addKey adds the key that the passphrase protects: a new one, which it stores, or that of the
// earlier runs.
func (e *sealer) addKey(ctx context.Context, s Storage, dir string, o EncryptionOptions, resume bool) error {
	if resume {
		file, err := readAll(ctx, s, dir+keyName, maxKeyFile)
		if err != nil {
			return fmt.Errorf("open the key of the backup: %w", err)
		}
		identity, err := OpenKeyFile(file, o.Passphrase)
		if err != nil {
			return err
		}
		e.recipients = append(e.recipients, identity.Recipient())
		e.public.KeySHA256 = sha256Hex(file)
		return nil
	}
	identity, file, err := o.NewKeyFile()
	if err != nil {
		return err
	}
	if err := s.Put(ctx, dir+keyName, file); err != nil {
		return fmt.Errorf("store the key of the backup: %w", err)
	}
	e.recipients = append(e.recipients, identity.Recipient())
	e.public.KeySHA256 = sha256Hex(file)
	return nil
}

// same reports whether two runs of one backup encrypt to the same keys.
func (e *Encryption) same(other *Encryption) bool {
	if e == nil || other == nil {
		return e == other
	}
	return e.KeyFile == other.KeyFile && slices.Equal(e.Recipients, other.Recipients)
}

// A keyring decrypts the chunks of a backup.
type keyring struct {
	identities []age.Identity
}

// newKeyring collects the keys that opts has for an encrypted backup. It returns nil if there
// is none.
func newKeyring(ctx context.Context, s Storage, dir string, e *Encryption, opts ReadOptions) (*keyring, error) {
	if e == nil {
		return nil, nil
	}
	if e.Scheme != "age" {
		return nil, fmt.Errorf("read encryption: scheme %q is unknown", e.Scheme)
	}
	keys, err := parseIdentities(opts.Identities)
	if err != nil {
		return nil, err
	}
	if opts.Passphrase != "" && e.KeyFile != "" {
		file, err := e.keyFile(ctx, s, dir)
		if err != nil {
			return nil, fmt.Errorf("open the key of the backup: %w", err)
		}
		identity, err := OpenKeyFile(file, opts.Passphrase)
		switch {
		case err == nil:
			keys = append(keys, identity)
		case len(keys) == 0:
			return nil, err
		}
	}
	if len(keys) == 0 {
		return nil, nil
	}
	return &keyring{identities: keys}, nil
}

// keyFile reads the key file of a backup, and compares it with the manifest.
func (e *Encryption) keyFile(ctx context.Context, s Storage, dir string) ([]byte, error) {
	return wanted(ctx, s, dir, e.KeyFile, e.KeySHA256, maxKeyFile)
}

// wanted reads a small object of a backup and compares it with its SHA-256, if sum is not "".
func wanted(ctx context.Context, s Storage, dir, name, sum string, limit int64) ([]byte, error) {
	data, err := readAll(ctx, s, dir+name, limit)
	if errors.Is(err, ErrNotExist) {
		return nil, &ChunkError{Path: name, File: name, Fault: ErrMissing, Err: err}
	}
	if err != nil {
		return nil, err
	}
	if got := sha256Hex(data); sum != "" && got != sum {
		return nil, &ChunkError{Path: name, File: name, Fault: ErrCorrupt, Expected: "SHA-256 " + sum, Got: got}
	}
	return data, nil
}

// readAll reads an object of up to limit bytes.
func readAll(ctx context.Context, s Storage, name string, limit int64) ([]byte, error) {
	r, err := s.Open(ctx, name, 0)
	if err != nil {
		return nil, err
	}
	data, err := io.ReadAll(io.LimitReader(r, limit+1))
	if err := errors.Join(err, r.Close()); err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	if int64(len(data)) > limit {
		return nil, fmt.Errorf("read %s: more than %d bytes", name, limit)
	}
	return data, nil
}
