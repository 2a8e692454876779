package pgwire

import (
	"bytes"
	"crypto/hmac"
	"crypto/pbkdf2"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// SCRAM-SHA-256 (RFC 5802, RFC 7677) as PostgreSQL speaks it: the user name
// inside the exchange is ignored in favour of the startup packet's, there is no
// authorization identity, channel binding is tls-server-end-point. Both sides
// here are pure: messages in, messages out.

const (
	mechSCRAM     = "SCRAM-SHA-256"
	mechSCRAMPlus = "SCRAM-SHA-256-PLUS"

	// scramIterations is what PostgreSQL uses by default (scram_iterations).
	scramIterations = 4096
	// maxIterations bounds what a server may make weir compute: about 3 s.
	maxIterations = 10_000_000
	scramSaltLen  = 16
	scramNonceLen = 18
	bindingType   = "tls-server-end-point"
)

// errProof reports that the other side does not know the password.
var errProof = errors.New("wrong password")

// scramKeys is what a server stores of a password.
type scramKeys struct {
	iterations int
	salt       []byte
	stored     []byte // H(ClientKey)
	server     []byte // ServerKey
}

func mac(key []byte, data string) []byte {
	h := hmac.New(sha256.New, key)
	h.Write([]byte(data))
	return h.Sum(nil)
}

// clientKeys derives ClientKey and ServerKey from a password.
func clientKeys(password string, salt []byte, iterations int) (client, server []byte, err error) {
	salted, err := pbkdf2.Key(sha256.New, preparePassword(password), salt, iterations, sha256.Size)
	if err != nil {
		return nil, nil, fmt.Errorf("derive SCRAM keys: %w", err)
	}
	return mac(salted, "Client Key"), mac(salted, "Server Key"), nil
}

// newSCRAMKeys derives what a server stores.
func newSCRAMKeys(password string, salt []byte, iterations int) (scramKeys, error) {
	client, server, err := clientKeys(password, salt, iterations)
	if err != nil {
		return scramKeys{}, err
	}
	stored := sha256.Sum256(client)
	return scramKeys{iterations: iterations, salt: salt, stored: stored[:], server: server}, nil
}

// scramServer is the server's side of one exchange.
type scramServer struct {
	keys scramKeys
	// mock makes the exchange fail at its end whatever the client proves: for
	// users that do not exist or have no SCRAM secret.
	mock bool
	// binding is the channel binding data; nil when there is none to offer.
	binding []byte
	// plus tells that the client chose SCRAM-SHA-256-PLUS.
	plus  bool
	nonce string // the server's part; drawn by first if empty

	gs2        string // the client's header, as it must come back in "c="
	clientBare string
	serverMsg  string
}

// first answers the client-first-message.
func (s *scramServer) first(msg []byte) ([]byte, error) {
	if bytes.IndexByte(msg, 0) >= 0 {
		return nil, violation("message holds a NUL")
	}
	flag, rest, ok := strings.Cut(string(msg), ",")
	authzid, bare, ok2 := strings.Cut(rest, ",")
	if !ok || !ok2 {
		return nil, violation("no channel binding header")
	}
	switch {
	case s.plus && flag != "p="+bindingType:
		return nil, violation("the client chose %s and then channel binding %q", mechSCRAMPlus, flag)
	case s.plus:
	case flag == "n":
	case flag == "y" && s.binding == nil:
	case flag == "y":
		// Somebody in between hid the offer (RFC 5802 section 6).
		return nil, violation("the client supports channel binding and thinks that the server does not; it does")
	default:
		return nil, violation("channel binding %q with mechanism %s", flag, mechSCRAM)
	}
	if authzid != "" {
		return nil, &Error{Severity: "FATAL", SeverityRaw: "FATAL", Code: CodeFeatureNotSupported, Message: "client uses authorization identity, but it is not supported"}
	}
	s.gs2, s.clientBare = flag+","+authzid+",", bare
	attrs := strings.Split(bare, ",")
	if len(attrs) < 2 || !strings.HasPrefix(attrs[0], "n=") || !strings.HasPrefix(attrs[1], "r=") {
		return nil, violation("no user name and nonce") // "m=", a mandatory extension, ends here too
	}
	clientNonce := attrs[1][2:]
	if clientNonce == "" || !printable(clientNonce) {
		return nil, violation("nonce is empty or not printable")
	}
	if s.nonce == "" {
		s.nonce = newNonce()
	}
	s.nonce = clientNonce + s.nonce
	s.serverMsg = fmt.Sprintf("r=%s,s=%s,i=%d", s.nonce, base64.StdEncoding.EncodeToString(s.keys.salt), s.keys.iterations)
	return []byte(s.serverMsg), nil
}

// final checks the client-final-message. It returns the server-final-message
// and the ClientKey that the proof revealed, or errProof.
func (s *scramServer) final(msg []byte) (answer, clientKey []byte, err error) {
	text := string(msg)
	cut := strings.LastIndex(text, ",p=")
	if cut < 0 {
		return nil, nil, violation("no proof")
	}
	attrs := strings.Split(text[:cut], ",")
	if len(attrs) < 2 || !strings.HasPrefix(attrs[0], "c=") || !strings.HasPrefix(attrs[1], "r=") {
		return nil, nil, violation("no channel binding and nonce")
	}
	binding := s.gs2
	if s.plus {
		binding += string(s.binding)
	}
	if attrs[0][2:] != base64.StdEncoding.EncodeToString([]byte(binding)) {
		return nil, nil, NewFatal(CodeInvalidAuthorization, "SCRAM channel binding check failed")
	}
	if attrs[1][2:] != s.nonce {
		return nil, nil, violation("nonce does not match")
	}
	proof, err := base64.StdEncoding.DecodeString(text[cut+3:])
	if err != nil || len(proof) != sha256.Size {
		return nil, nil, violation("malformed proof")
	}
	auth := s.clientBare + "," + s.serverMsg + "," + text[:cut]
	clientKey = make([]byte, sha256.Size)
	subtle.XORBytes(clientKey, proof, mac(s.keys.stored, auth))
	stored := sha256.Sum256(clientKey)
	if subtle.ConstantTimeCompare(stored[:], s.keys.stored) != 1 || s.mock {
		return nil, nil, errProof
	}
	return []byte("v=" + base64.StdEncoding.EncodeToString(mac(s.keys.server, auth))), clientKey, nil
}

// scramClient is the client's side of one exchange. It proves knowledge of
// password, or of keys when there is no password.
type scramClient struct {
	password string
	keys     *ClientKeys
	gs2      string // "n,,", "y,," or "p=tls-server-end-point,,"
	binding  []byte // channel binding data, with "p=" only
	nonce    string // drawn by first if empty

	bare      string
	auth      string
	serverKey []byte
}

func (c *scramClient) first() []byte {
	if c.nonce == "" {
		c.nonce = newNonce()
	}
	c.bare = "n=,r=" + c.nonce
	return []byte(c.gs2 + c.bare)
}

// final answers the server-first-message.
func (c *scramClient) final(msg []byte) ([]byte, error) {
	text := string(msg)
	attrs := strings.Split(text, ",")
	if len(attrs) < 3 || !strings.HasPrefix(attrs[0], "r=") || !strings.HasPrefix(attrs[1], "s=") || !strings.HasPrefix(attrs[2], "i=") {
		return nil, violation("expected nonce, salt and iterations")
	}
	nonce := attrs[0][2:]
	if len(nonce) <= len(c.nonce) || !strings.HasPrefix(nonce, c.nonce) {
		return nil, violation("the server's nonce does not extend the client's")
	}
	salt, err := base64.StdEncoding.DecodeString(attrs[1][2:])
	if err != nil || len(salt) == 0 {
		return nil, violation("malformed salt")
	}
	iterations, err := strconv.Atoi(attrs[2][2:])
	if err != nil || iterations < 1 || iterations > maxIterations {
		return nil, violation("iteration count %q: want 1 to %d", attrs[2][2:], maxIterations)
	}
	var clientKey []byte
	if c.password != "" {
		if clientKey, c.serverKey, err = clientKeys(c.password, salt, iterations); err != nil {
			return nil, err
		}
	} else {
		clientKey, c.serverKey = c.keys.ClientKey, c.keys.ServerKey
	}
	bare := "c=" + base64.StdEncoding.EncodeToString(append([]byte(c.gs2), c.binding...)) + ",r=" + nonce
	c.auth = c.bare + "," + text + "," + bare
	stored := sha256.Sum256(clientKey)
	proof := make([]byte, sha256.Size)
	subtle.XORBytes(proof, clientKey, mac(stored[:], c.auth))
	return []byte(bare + ",p=" + base64.StdEncoding.EncodeToString(proof)), nil
}

// verify checks the server-final-message: that the server knows the password
// too, or at least what is stored of it.
func (c *scramClient) verify(msg []byte) error {
	text, _, _ := strings.Cut(string(msg), ",")
	if reason, ok := strings.CutPrefix(text, "e="); ok {
		return fmt.Errorf("server ends the SCRAM exchange: %s", reason)
	}
	signature, ok := strings.CutPrefix(text, "v=")
	got, err := base64.StdEncoding.DecodeString(signature)
	if !ok || err != nil {
		return violation("no server signature")
	}
	if c.auth == "" || !hmac.Equal(got, mac(c.serverKey, c.auth)) {
		return errors.New("the server does not know the password: its SCRAM signature is wrong")
	}
	return nil
}

// violation returns the error for a message that is not SCRAM.
func violation(format string, args ...any) error {
	e := NewFatal(CodeProtocolViolation, "malformed SCRAM message")
	e.Detail = fmt.Sprintf(format, args...)
	return e
}

func newNonce() string {
	var raw [scramNonceLen]byte
	_, _ = rand.Read(raw[:]) // never fails, since Go 1.24
	return base64.StdEncoding.EncodeToString(raw[:])
}

// printable reports whether s is made of the bytes that RFC 5802 allows in a
// nonce.
func printable(s string) bool {
	for _, c := range []byte(s) {
		if c < 0x21 || c > 0x7e || c == ',' {
			return false
		}
	}
	return true
}
