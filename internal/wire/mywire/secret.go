package mywire

import (
	"crypto/ed25519"
	"crypto/sha1"
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
)

// maxPassword is the longest password, in bytes, that a server's caching_sha2_password accepts.
// The time of its hash grows with the square of the length.
const maxPassword = 256

// Secret is what weir stores of one user's password: the password itself or a hash of it, in
// the forms of mysql.user's authentication_string. The zero Secret is that of a user who does
// not exist or may not log in: it fails every login, and looks to the client like a wrong
// password. Safe for concurrent use. It prints as its kind only.
type Secret struct {
	kind   secretKind
	text   string // the password
	stage2 []byte // SHA1(SHA1(password)), if that is known
	sha2   *sha2Hash
	public ed25519.PublicKey
}

type secretKind uint8

const (
	secretNone secretKind = iota
	secretPlain
	secretNative
	secretSHA2
	secretEd25519
)

// sha2Hash is a hash of caching_sha2_password, which by itself serves the full login only. The
// first successful full login yields what the fast one needs.
type sha2Hash struct {
	rounds int
	salt   []byte
	digest string

	mu     sync.Mutex
	stage2 []byte // SHA256(SHA256(password)) once known
}

// ParseSecret parses a secret of an auth file or mysql.user: "*" and 40 hex digits
// (mysql_native_password), "$A$005$", salt and digest (caching_sha2_password), otherwise a
// plain password. "" is the zero Secret; a user who logs in without a password has EmptySecret.
// Errors do not quote the input.
func ParseSecret(s string) (Secret, error) {
	if s == "" {
		return Secret{}, nil
	}
	if digits, ok := strings.CutPrefix(s, "*"); ok && len(digits) == 2*sha1.Size {
		if stage2, err := hex.DecodeString(digits); err == nil {
			return Secret{kind: secretNative, stage2: stage2}, nil
		}
	}
	if rest, ok := strings.CutPrefix(s, "$A$"); ok {
		h, err := parseSHA2Hash(rest)
		if err != nil {
			return Secret{}, fmt.Errorf("parse caching_sha2_password secret: %w", err)
		}
		return Secret{kind: secretSHA2, sha2: h}, nil
	}
	return Secret{kind: secretPlain, text: s}, nil
}

// ParseEd25519Secret parses the public key that mysql.user has for an account of MariaDB's
// plugin ed25519. A login against it reveals nothing that weir could log in with.
func ParseEd25519Secret(s string) (Secret, error) {
	key, err := base64.RawStdEncoding.DecodeString(s)
	if err != nil || len(key) != ed25519.PublicKeySize {
		return Secret{}, errors.New("parse ed25519 secret: want 43 characters of base64")
	}
	return Secret{kind: secretEd25519, public: key}, nil
}

// Plugin returns the plugin that the secret is for: "password" if it is the password itself,
// which serves several.
func (s Secret) Plugin() string {
	return [...]string{"", "password", PluginNative, PluginSHA2, PluginEd25519}[s.kind]
}

// Teaches reports whether a login against the secret reveals what is needed to log in to a
// server.
func (s Secret) Teaches() bool { return s.kind != secretEd25519 }

// parseSHA2Hash parses "005$", 20 bytes of salt and 43 characters of digest. The number counts
// thousands of rounds, in hex.
func parseSHA2Hash(s string) (*sha2Hash, error) {
	count, rest, ok := strings.Cut(s, "$")
	if !ok || len(rest) != saltLen+cryptDigestLen {
		return nil, errors.New("want $A$, rounds, $, 20 bytes of salt and 43 of digest")
	}
	n, err := strconv.ParseUint(count, 16, 12)
	if err != nil || n < 5 {
		return nil, errors.New("rounds: want three hex digits, 005 or more")
	}
	return &sha2Hash{rounds: int(n) * 1000, salt: []byte(rest[:saltLen]), digest: rest[saltLen:]}, nil
}

// NewNativeSecret returns the mysql_native_password hash of a password: text for an auth file
// or for CREATE USER ... IDENTIFIED BY PASSWORD.
func NewNativeSecret(password string) string {
	stage1 := sha1.Sum([]byte(password))
	stage2 := sha1.Sum(stage1[:])
	return "*" + strings.ToUpper(hex.EncodeToString(stage2[:]))
}

// NewSHA2Secret returns the caching_sha2_password hash of a password, with a random salt: text
// for an auth file that does not reveal the password.
func NewSHA2Secret(password string) string {
	salt := newSalt()
	return "$A$005$" + string(salt) + sha256Crypt([]byte(password), salt, 5000)
}

// IsZero reports whether s is the zero Secret.
func (s Secret) IsZero() bool { return s.kind == secretNone }

// Plain returns the password if s has it.
func (s Secret) Plain() (password string, ok bool) { return s.text, s.kind == secretPlain }

// String returns the kind of the secret.
func (s Secret) String() string {
	return [...]string{"no secret", "plain password", "mysql_native_password hash", "caching_sha2_password hash", "ed25519 public key"}[s.kind]
}

// GoString keeps %#v from printing the secret.
func (s Secret) GoString() string { return s.String() }

// LogValue keeps loggers from printing the secret.
func (s Secret) LogValue() slog.Value { return slog.StringValue(s.String()) }

// nativeStage2 returns SHA1(SHA1(password)) if s has it.
func (s Secret) nativeStage2() (stage2 []byte, ok bool) {
	switch s.kind {
	case secretPlain:
		stage1 := sha1.Sum([]byte(s.text))
		sum := sha1.Sum(stage1[:])
		return sum[:], true
	case secretNative:
		return s.stage2, true
	}
	return nil, false
}

// sha2Stage2 returns SHA256(SHA256(password)) if s has it, or has learned it.
func (s Secret) sha2Stage2() (stage2 []byte, ok bool) {
	switch s.kind {
	case secretPlain:
		return sha2Stage2(s.text), true
	case secretSHA2:
		s.sha2.mu.Lock()
		defer s.sha2.mu.Unlock()
		return s.sha2.stage2, s.sha2.stage2 != nil
	}
	return nil, false
}

func sha2Stage2(password string) []byte {
	stage1 := sha256.Sum256([]byte(password))
	sum := sha256.Sum256(stage1[:])
	return sum[:]
}

// matches reports whether password is the one of s.
func (s Secret) matches(password string) bool {
	if len(password) > maxPassword {
		return false
	}
	switch s.kind {
	case secretPlain:
		return subtle.ConstantTimeCompare([]byte(s.text), []byte(password)) == 1
	case secretNative:
		stage1 := sha1.Sum([]byte(password))
		sum := sha1.Sum(stage1[:])
		return subtle.ConstantTimeCompare(sum[:], s.stage2) == 1
	case secretSHA2:
		return s.sha2.matches(password)
	}
	return false
}

func (h *sha2Hash) matches(password string) bool {
	digest := sha256Crypt([]byte(password), h.salt, h.rounds)
	if subtle.ConstantTimeCompare([]byte(digest), []byte(h.digest)) != 1 {
		return false
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.stage2 = sha2Stage2(password)
	return true
}

// ClientKeys are what a login revealed of a user's password, enough to log in to a server as
// that user: the password, or the value from which a plugin computes its proof. They print
// without their values.
type ClientKeys struct {
	Password    string
	HasPassword bool   // an empty Password is one
	Native      []byte // SHA1(password): logs in by mysql_native_password
	// SHA2 is SHA256(password): logs in by caching_sha2_password while the server has the
	// user's password in its cache.
	SHA2 []byte
}

// PasswordKeys returns the keys of a known password.
func PasswordKeys(password string) *ClientKeys {
	return &ClientKeys{Password: password, HasPassword: true}
}

// native returns SHA1(password) if k has it.
func (k *ClientKeys) native() (stage1 []byte, ok bool) {
	switch {
	case k == nil:
		return nil, false
	case k.HasPassword:
		sum := sha1.Sum([]byte(k.Password))
		return sum[:], true
	}
	return k.Native, k.Native != nil
}

func (k *ClientKeys) sha2() (stage1 []byte, ok bool) {
	switch {
	case k == nil:
		return nil, false
	case k.HasPassword:
		sum := sha256.Sum256([]byte(k.Password))
		return sum[:], true
	}
	return k.SHA2, k.SHA2 != nil
}

// empty reports whether the password is known to be empty, which every plugin proves by an
// empty answer.
func (k *ClientKeys) empty() bool { return k != nil && k.HasPassword && k.Password == "" }

// String hides the keys.
func (k *ClientKeys) String() string {
	switch {
	case k == nil:
	case k.HasPassword:
		return "password (hidden)"
	case k.Native != nil:
		return "mysql_native_password key (hidden)"
	case k.SHA2 != nil:
		return "caching_sha2_password key (hidden)"
	}
	return "no keys"
}

// GoString keeps %#v from printing the keys.
func (k *ClientKeys) GoString() string { return k.String() }

// LogValue keeps loggers from printing the keys.
func (k *ClientKeys) LogValue() slog.Value { return slog.StringValue(k.String()) }
