package mywire

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"errors"
	"fmt"

	"github.com/weirdb/weir/internal/wire/netwire"
)

var (
	errProof = errors.New("wrong password")
	errUnfit = errors.New("no secret that fits")
)

// Authenticate checks a client that Accept returned. On success the client waits for Welcome or
// Refuse, and Authenticate returns the keys that the login revealed, nil if it revealed none.
//
// The plugin follows from the secret: a hash serves only its own plugin; with a plain password
// the client has the choice of mysql_native_password, caching_sha2_password and, if no third
// party can read the connection, mysql_clear_password.
//
// A client that fails has got the one error that servers send for a wrong password, an unknown
// user (the zero Secret) and an unfit secret alike. The returned error distinguishes them, and
// CodeOf returns the number that was sent. ctx bounds the time.
func (c *Client) Authenticate(ctx context.Context, secret Secret) (*ClientKeys, error) {
	release := netwire.Bound(ctx, c.Conn, 0)
	a := &authenticator{Client: c, secret: secret, salt: c.Salt}
	keys, err := a.run()
	if err != nil {
		err = a.refuse(err)
	}
	if err = release(err); err != nil {
		return nil, fmt.Errorf("authenticate %q: %w", c.Response.User, err)
	}
	return keys, nil
}

// AskPassword requests the client's password in clear text and lets verify check it: the client
// gets an error of verify as a wrong password, unless it is or wraps an *Error, which is sent
// unchanged. A client whose connection third parties can read is refused without a request.
// Everything else is as with Authenticate.
func (c *Client) AskPassword(ctx context.Context, verify func(ctx context.Context, password string) error) (*ClientKeys, error) {
	release := netwire.Bound(ctx, c.Conn, 0)
	a := &authenticator{Client: c, salt: c.Salt}
	password, err := a.inClear()
	if err == nil {
		if err = verify(ctx, password); err != nil && CodeOf(err) == 0 {
			err = fmt.Errorf("%w: %w", errProof, err)
		}
	}
	if err != nil {
		err = a.refuse(err)
	}
	if err = release(err); err != nil {
		return nil, fmt.Errorf("authenticate %q: %w", c.Response.User, err)
	}
	return PasswordKeys(password), nil
}

// inClear requests the client's password by mysql_clear_password.
func (a *authenticator) inClear() (string, error) {
	if !a.Secure() {
		return "", NewError(ErrAccessDenied, "weir asks for the password in clear text (mysql_clear_password), and the connection has no TLS: connect with TLS")
	}
	answer := a.Response.Auth
	if a.Response.Plugin != PluginClear || len(answer) == 0 {
		if !a.Caps.Has(CapPluginAuth) {
			return "", NewError(ErrOldAuth, "Client does not support authentication protocol requested by server; consider upgrading MySQL client")
		}
		err := a.link.write(func(dst []byte, seq byte) []byte { return AppendAuthSwitch(dst, seq, PluginClear, nil) })
		if err != nil {
			return "", err
		}
		if answer, err = a.read(); err != nil {
			return "", err
		}
	}
	password, err := clearPassword(answer)
	a.answered = password != ""
	if err == nil && password == "" {
		err = fmt.Errorf("%w: it is empty", errProof)
	}
	return password, err
}

// Proves reports whether the client's first message proves that it knows the password; secret
// is what a server stores of that. It sends nothing to the client: if the result is false,
// Authenticate checks the client.
func (c *Client) Proves(secret Secret) bool {
	a := &authenticator{Client: c, secret: secret, salt: c.Salt}
	plugin := a.choose()
	if plugin != c.Response.Plugin || plugin != c.plugin || len(c.Response.Auth) < 2 {
		return false
	}
	switch plugin {
	case PluginNative:
		_, err := a.native(c.Response.Auth)
		return err == nil
	case PluginSHA2:
		stage2, known := secret.sha2Stage2()
		return known && sha2Stage1(c.Response.Auth, a.salt, stage2) != nil
	}
	return false
}

// ed25519SaltLen is the length of MariaDB's challenge for the plugin ed25519.
const ed25519SaltLen = 32

// newEd25519Salt makes such a challenge. It does not end with a NUL, which go-sql-driver (1.10)
// takes for the end of a string, so that its login fails.
func newEd25519Salt() []byte {
	salt := make([]byte, ed25519SaltLen)
	_, _ = rand.Read(salt) // never fails, since Go 1.24
	if last := &salt[ed25519SaltLen-1]; *last == 0 {
		*last = 1
	}
	return salt
}

type authenticator struct {
	*Client
	secret Secret
	salt   []byte
	// answered tells that the client has proved or tried to: it sent more than
	// an empty answer.
	answered bool
}

// choose returns the plugin for the check of the client.
func (a *authenticator) choose() string {
	switch a.secret.kind {
	case secretNative:
		return PluginNative
	case secretSHA2:
		return PluginSHA2
	case secretEd25519:
		return PluginEd25519
	}
	switch p := a.Response.Plugin; p {
	case PluginNative, PluginSHA2:
		return p
	case PluginClear:
		if a.Secure() {
			return p
		}
	}
	if a.plugin == PluginSHA2 {
		return PluginSHA2
	}
	return PluginNative
}

func (a *authenticator) run() (*ClientKeys, error) {
	plugin := a.choose()
	answer := a.Response.Auth
	if plugin != a.Response.Plugin || plugin != a.Client.plugin || plugin == PluginEd25519 {
		if !a.Caps.Has(CapPluginAuth) {
			return nil, NewError(ErrOldAuth, "Client does not support authentication protocol requested by server; consider upgrading MySQL client")
		}
		// Clients built on MariaDB's library answer a request after COM_CHANGE_USER with the
		// challenge that they had before, whatever the new one is.
		if !a.changes || len(a.Salt) != saltLen {
			a.salt = newSalt()
		}
		if plugin == PluginEd25519 {
			a.salt = newEd25519Salt()
		}
		a.Salt = a.salt
		err := a.link.write(func(dst []byte, seq byte) []byte { return AppendAuthSwitch(dst, seq, plugin, a.salt) })
		if err != nil {
			return nil, err
		}
		if answer, err = a.read(); err != nil {
			return nil, err
		}
	}
	if len(answer) == 1 && answer[0] == 0 {
		answer = nil // some clients send this if they have no password
	}
	a.answered = len(answer) > 0
	if !a.answered {
		return a.empty()
	}
	switch plugin {
	case PluginNative:
		return a.native(answer)
	case PluginSHA2:
		return a.sha2(answer)
	case PluginEd25519:
		if len(answer) != ed25519.SignatureSize || !ed25519.Verify(a.secret.public, a.salt, answer) {
			return nil, errProof
		}
		return nil, nil
	}
	return a.password(clearPassword(answer))
}

// read returns a copy of the client's next packet.
func (a *authenticator) read() ([]byte, error) {
	payload, err := a.link.read()
	if err != nil {
		return nil, netwire.UnexpectedEOF(err)
	}
	return bytes.Clone(payload), nil
}

// unfit returns why the secret cannot serve, or nil.
func (a *authenticator) unfit() error {
	if a.secret.IsZero() {
		return fmt.Errorf("unknown user: %w", errUnfit)
	}
	return fmt.Errorf("%s: %w", a.secret, errUnfit)
}

func (a *authenticator) empty() (*ClientKeys, error) {
	if password, ok := a.secret.Plain(); ok && password == "" {
		return PasswordKeys(""), nil
	}
	if a.secret.IsZero() {
		return nil, a.unfit()
	}
	return nil, errProof
}

func (a *authenticator) native(answer []byte) (*ClientKeys, error) {
	stage2, ok := a.secret.nativeStage2()
	if !ok {
		return nil, a.unfit()
	}
	stage1 := nativeStage1(answer, a.salt, stage2)
	if stage1 == nil {
		return nil, errProof
	}
	return a.keys(&ClientKeys{Native: stage1}), nil
}

// keys returns the password if weir knows it, otherwise what the client proved.
func (a *authenticator) keys(proved *ClientKeys) *ClientKeys {
	if password, ok := a.secret.Plain(); ok {
		return PasswordKeys(password)
	}
	return proved
}

func (a *authenticator) sha2(answer []byte) (*ClientKeys, error) {
	stage2, known := a.secret.sha2Stage2()
	if known {
		if stage1 := sha2Stage1(answer, a.salt, stage2); stage1 != nil {
			return a.keys(&ClientKeys{SHA2: stage1}), a.more([]byte{authFastDone})
		}
		if a.secret.kind == secretPlain {
			return nil, errProof
		}
	}
	if a.secret.kind != secretSHA2 {
		return nil, a.unfit()
	}
	return a.password(a.askPassword(a.salt))
}

func (a *authenticator) password(password string, err error) (*ClientKeys, error) {
	if err != nil {
		return nil, err
	}
	if a.secret.IsZero() {
		return nil, a.unfit()
	}
	if !a.secret.matches(password) {
		return nil, errProof
	}
	return PasswordKeys(password), nil
}

func (c *Client) more(data []byte) error {
	return c.link.write(func(dst []byte, seq byte) []byte { return AppendAuthMore(dst, seq, data) })
}

// askPassword performs the full login of caching_sha2_password: the client sends the password,
// in clear text if no third party can read the connection, otherwise encrypted for weir's RSA
// key.
func (c *Client) askPassword(salt []byte) (string, error) {
	if err := c.more([]byte{authFull}); err != nil {
		return "", err
	}
	answer, err := c.link.read()
	if err != nil {
		return "", netwire.UnexpectedEOF(err)
	}
	if c.Secure() {
		return clearPassword(answer)
	}
	key, err := c.rsaKey()
	if err != nil {
		return "", err
	}
	if len(answer) == 1 && answer[0] == askKeySHA2 {
		text, err := marshalRSAKey(&key.PublicKey)
		if err != nil {
			return "", err
		}
		if err := c.more(text); err != nil {
			return "", err
		}
		if answer, err = c.link.read(); err != nil {
			return "", netwire.UnexpectedEOF(err)
		}
	}
	password, err := decryptPassword(answer, salt, key)
	if err != nil {
		return "", fmt.Errorf("%w: %w", errProof, err)
	}
	return password, nil
}

// refuse sends the client the error for err, and returns both.
func (a *authenticator) refuse(err error) error {
	var e *Error
	switch {
	case errors.As(err, &e):
	case errors.Is(err, errProof) || errors.Is(err, errUnfit):
		e = accessDenied(a.Response.User, a.Conn, a.answered)
		err = fmt.Errorf("%w: %w", err, e)
	case errors.Is(err, ErrMalformed):
		e = NewError(ErrBadHandshake, "Bad handshake")
		err = fmt.Errorf("%w: %w", err, e)
	default:
		return err
	}
	if werr := a.Client.refuse(e); werr != nil {
		return fmt.Errorf("%w (and the client could not be told: %w)", err, werr)
	}
	return err
}
