package mywire

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/weirdb/weir/internal/wire/netwire"
)

// maxAuthRounds bounds the requests of a server in one login.
const maxAuthRounds = 16

var (
	errPlugin   = errors.New("weir cannot log in by this authentication plugin: use an account with mysql_native_password, ed25519, caching_sha2_password or sha256_password")
	errKeys     = errors.New("the password itself is needed, and weir has only a hash of it")
	errInsecure = errors.New("the server asks for the password in clear text, and the connection has no TLS")
)

// proof returns the first answer to the current plugin and salt.
func (p *Pending) proof() ([]byte, error) {
	keys := p.cfg.Keys
	switch p.plugin {
	case PluginNative:
		if keys.empty() {
			return nil, nil
		}
		if stage1, ok := keys.native(); ok {
			return nativeProof(stage1, p.salt), nil
		}
	case PluginSHA2:
		if keys.empty() {
			return nil, nil
		}
		if stage1, ok := keys.sha2(); ok {
			return sha2Proof(stage1, p.salt), nil
		}
	case PluginSHA256:
		if keys.empty() {
			return []byte{0}, nil
		}
		return p.clearOr([]byte{askKeySHA256})
	case PluginClear:
		return p.clearOr(nil)
	case PluginEd25519:
		if keys.HasPassword {
			return ed25519Proof(keys.Password, p.salt)
		}
	case PluginOld:
		return nil, errors.New("the server asks for the password hash of MySQL before 4.1, which is not safe to give")
	default:
		return nil, fmt.Errorf("%s: %w", p.plugin, errPlugin)
	}
	return nil, fmt.Errorf("%s: %w", p.plugin, errKeys)
}

// inClear reports whether the current plugin sends the password in clear text: if no third
// party can read the connection, though sha256_password does not trust Unix sockets.
func (p *Pending) inClear() bool {
	if p.plugin == PluginSHA256 {
		return p.tls
	}
	return p.Secure()
}

// clearOr returns the password in clear text if no third party can read the connection,
// otherwise ask, the request for the server's key, which may be nil.
func (p *Pending) clearOr(ask []byte) ([]byte, error) {
	switch {
	case !p.cfg.Keys.HasPassword:
		return nil, fmt.Errorf("%s: %w", p.plugin, errKeys)
	case p.inClear():
		return append([]byte(p.cfg.Keys.Password), 0), nil
	case ask == nil:
		return nil, fmt.Errorf("%s: %w", p.plugin, errInsecure)
	case p.cfg.ServerKey != nil:
		return encryptPassword(p.cfg.Keys.Password, p.salt, p.cfg.ServerKey)
	}
	return ask, nil
}

// converse answers the server's requests until it sends OK or ERR.
func (p *Pending) converse(caps Caps) (OK, error) {
	for range maxAuthRounds {
		payload, err := p.link.read()
		if err != nil {
			return OK{}, netwire.UnexpectedEOF(err)
		}
		if done, ok, err := p.outcome(payload, caps); done || err != nil {
			return ok, err
		}
		answer, wanted, err := p.answer(payload)
		if err != nil {
			return OK{}, err
		}
		if wanted {
			if err := p.link.send(answer); err != nil {
				return OK{}, err
			}
		}
	}
	return OK{}, fmt.Errorf("the server asks for more and more: %w", ErrMalformed)
}

// outcome parses the packet that ends a login. The OK does not alias it.
func (p *Pending) outcome(payload []byte, caps Caps) (done bool, ok OK, err error) {
	if len(payload) == 0 {
		return false, OK{}, ErrMalformed
	}
	p.ended = payload[0] == headerOK || payload[0] == headerError
	switch payload[0] {
	case headerOK:
		ok, err = ParseOK(payload, caps)
		ok.Info, ok.State = bytes.Clone(ok.Info), bytes.Clone(ok.State)
		return true, ok, err
	case headerError:
		e, err := ParseError(payload)
		if err != nil {
			return true, OK{}, err
		}
		return true, OK{}, e
	}
	return false, OK{}, nil
}

// answer returns the answer to an AuthSwitchRequest or AuthMoreData, if one is wanted.
func (p *Pending) answer(payload []byte) (answer []byte, wanted bool, err error) {
	switch payload[0] {
	case headerEOF:
		plugin, salt, err := ParseAuthSwitch(payload)
		if err != nil {
			return nil, false, err
		}
		p.plugin, p.salt = plugin, bytes.Clone(salt)
		answer, err = p.proof()
		return answer, true, err
	case headerAuthMore:
		if len(payload) == 2 && payload[1] == authFastDone && p.plugin == PluginSHA2 {
			return nil, false, nil
		}
		answer, err = p.more(payload[1:])
		return answer, true, err
	}
	return nil, false, fmt.Errorf("packet %#02x during login: %w", payload[0], ErrMalformed)
}

// more answers an AuthMoreData: a request for the password, or the RSA key that weir has
// requested.
func (p *Pending) more(data []byte) ([]byte, error) {
	switch {
	case p.plugin == PluginSHA2 && len(data) == 1 && data[0] == authFull:
		return p.clearOr([]byte{askKeySHA2})
	case (p.plugin == PluginSHA2 || p.plugin == PluginSHA256) && !p.inClear() && p.cfg.Keys.HasPassword && p.cfg.ServerKey == nil:
		key, err := parseRSAKey(data)
		if err != nil {
			return nil, err
		}
		return encryptPassword(p.cfg.Keys.Password, p.salt, key)
	}
	return nil, fmt.Errorf("unexpected data of plugin %s: %w", p.plugin, ErrMalformed)
}
