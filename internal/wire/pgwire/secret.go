package pgwire

import (
	"crypto/md5"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
)

// Secret is what weir has of one user's password: the password itself, an md5 hash or a SCRAM
// secret, in the formats of pg_authid.rolpassword. The zero Secret is that of a user who does
// not exist or may not log in: every method that needs a secret fails, and to the client it
// looks like a wrong password. Safe for concurrent use. Formatting it prints only its kind.
type Secret struct {
	kind  secretKind
	text  string // the password, or the 32 hex digits of the md5 hash
	scram func() (scramKeys, error)
	// derived says, for a plain password, whether scram has its keys already.
	derived *atomic.Bool
}

type secretKind uint8

const (
	secretNone secretKind = iota
	secretPlain
	secretMD5
	secretSCRAM
)

// ParseSecret parses a secret in the formats of an auth file or pg_authid:
// "SCRAM-SHA-256$iterations:salt$StoredKey:ServerKey", "md5" and 32 hex digits, or otherwise a
// plain password. "" is the zero Secret. Errors do not contain the input.
func ParseSecret(s string) (Secret, error) {
	if s == "" {
		return Secret{}, nil
	}
	if fields, ok := strings.CutPrefix(s, mechSCRAM+"$"); ok {
		keys, err := parseSCRAMSecret(fields)
		if err != nil {
			return Secret{}, fmt.Errorf("parse SCRAM secret: %w", err)
		}
		return Secret{kind: secretSCRAM, scram: func() (scramKeys, error) { return keys, nil }}, nil
	}
	if digits, ok := strings.CutPrefix(s, "md5"); ok && len(digits) == 2*md5.Size {
		if _, err := hex.DecodeString(digits); err == nil {
			return Secret{kind: secretMD5, text: strings.ToLower(digits)}, nil
		}
	}
	// The keys are derived when the first SCRAM login needs them: that takes milliseconds, and
	// most secrets in a file are never used.
	derived := new(atomic.Bool)
	return Secret{kind: secretPlain, text: s, derived: derived, scram: sync.OnceValues(func() (scramKeys, error) {
		defer derived.Store(true)
		return newSCRAMKeys(s, newSalt(), scramIterations)
	})}, nil
}

// parseSCRAMSecret parses "iterations:salt$StoredKey:ServerKey".
func parseSCRAMSecret(s string) (scramKeys, error) {
	params, keys, ok := strings.Cut(s, "$")
	iterations, salt, ok2 := strings.Cut(params, ":")
	stored, server, ok3 := strings.Cut(keys, ":")
	if !ok || !ok2 || !ok3 {
		return scramKeys{}, errors.New("want SCRAM-SHA-256$iterations:salt$StoredKey:ServerKey")
	}
	var k scramKeys
	var err error
	if k.iterations, err = strconv.Atoi(iterations); err != nil || k.iterations < 1 || k.iterations > maxIterations {
		return scramKeys{}, fmt.Errorf("iteration count is not a number from 1 to %d", maxIterations)
	}
	for _, part := range []struct {
		name, text string
		size       int // 0: any, but not empty
		dst        *[]byte
	}{{"salt", salt, 0, &k.salt}, {"StoredKey", stored, sha256.Size, &k.stored}, {"ServerKey", server, sha256.Size, &k.server}} {
		b, err := base64.StdEncoding.DecodeString(part.text)
		if err != nil || len(b) == 0 || (part.size > 0 && len(b) != part.size) {
			return scramKeys{}, fmt.Errorf("%s is not base64 of the right length", part.name)
		}
		*part.dst = b
	}
	return k, nil
}

// NewSCRAMSecret returns the SCRAM secret of a password, with a random salt and PostgreSQL's
// default number of iterations. An auth file, or CREATE ROLE ... PASSWORD, can contain it
// without revealing the password.
func NewSCRAMSecret(password string) (string, error) {
	keys, err := newSCRAMKeys(password, newSalt(), scramIterations)
	if err != nil {
		return "", err
	}
	b64 := base64.StdEncoding.EncodeToString
	return fmt.Sprintf("%s$%d:%s$%s:%s", mechSCRAM, keys.iterations, b64(keys.salt), b64(keys.stored), b64(keys.server)), nil
}

func newSalt() []byte {
	salt := make([]byte, scramSaltLen)
	_, _ = rand.Read(salt) // never fails, since Go 1.24
	return salt
}

// IsZero reports whether s is the zero Secret.
func (s Secret) IsZero() bool { return s.kind == secretNone }

// Method returns the strongest method that the secret supports: SCRAM, unless it is an md5
// hash.
func (s Secret) Method() AuthMethod {
	if s.kind == secretMD5 {
		return AuthMD5
	}
	return AuthSCRAM
}

// Plain returns the password if s is a plain password.
func (s Secret) Plain() (password string, ok bool) { return s.text, s.kind == secretPlain }

// String returns the kind of the secret.
func (s Secret) String() string {
	return [...]string{"no secret", "plain password", "md5 secret", "SCRAM secret"}[s.kind]
}

// GoString keeps %#v from printing the secret.
func (s Secret) GoString() string { return s.String() }

// matches reports whether s was made from password.
func (s Secret) matches(user, password string) bool {
	switch s.kind {
	case secretPlain:
		return subtle.ConstantTimeCompare([]byte(s.text), []byte(password)) == 1
	case secretMD5:
		return subtle.ConstantTimeCompare([]byte(s.text), []byte(md5Hex(password, user))) == 1
	case secretSCRAM:
		keys, err := s.scram()
		if err != nil {
			return false
		}
		got, err := newSCRAMKeys(password, keys.salt, keys.iterations)
		return err == nil && subtle.ConstantTimeCompare(got.stored, keys.stored) == 1
	}
	return false
}

// md5Hex returns the hex digits of md5(password || salt). PostgreSQL stores it salted with the
// user's name, and sends that salted again.
func md5Hex(password, salt string) string {
	sum := md5.Sum([]byte(password + salt))
	return hex.EncodeToString(sum[:])
}

// mockSalt generates the salt that an unknown user appears to have. It must not change between
// attempts, or it would reveal that the user is unknown.
var mockSalt = sync.OnceValue(func() func(user string) []byte {
	var key [sha256.Size]byte
	_, _ = rand.Read(key[:])
	return func(user string) []byte { return mac(key[:], user)[:scramSaltLen] }
})

// ClientKeys is what a login revealed of a user's password, enough to log in to a server as
// that user: the password; or the two SCRAM keys, if the server stores the same SCRAM secret
// (same salt and iterations) as the user was authenticated against; or the 32 hex digits of the
// md5 hash, for servers that request md5. Formatting it prints no secrets.
type ClientKeys struct {
	ClientKey []byte
	ServerKey []byte
	MD5       string
	Password  string
}

// String hides the keys.
func (k *ClientKeys) String() string {
	switch {
	case k == nil:
		return "no keys"
	case k.Password != "":
		return "password (hidden)"
	case k.ClientKey != nil:
		return "SCRAM keys (hidden)"
	case k.MD5 != "":
		return "md5 hash (hidden)"
	}
	return "no keys"
}

// GoString keeps %#v from printing the keys.
func (k *ClientKeys) GoString() string { return k.String() }

// LogValue keeps loggers from printing the keys.
func (k *ClientKeys) LogValue() slog.Value { return slog.StringValue(k.String()) }
