package resp

import (
	"crypto/sha256"
	"crypto/subtle"
	"fmt"
	"time"
)

const wrongPassword = "WRONGPASS invalid username-password pair or user is disabled."

// logIn compares with all users, so that the time it takes does not reveal which one matches.
func (s *Server) logIn(name string, password []byte) *User {
	if len(s.cfg.Users) == 0 && name == defaultUser.Name {
		return defaultUser
	}
	given := sha256.Sum256(password)
	var found *User
	for i := range s.cfg.Users {
		u := &s.cfg.Users[i]
		right := sha256.Sum256([]byte(u.Password))
		same := subtle.ConstantTimeCompare(given[:], right[:])
		same &= subtle.ConstantTimeCompare([]byte(name), []byte(u.Name))
		if same == 1 {
			found = u
		}
	}
	return found
}

// resetLogin resets c to the state before login.
func (c *conn) resetLogin() {
	c.user = nil
	if len(c.srv.cfg.Users) == 0 {
		c.user = defaultUser
	}
	c.in.loggedIn = c.user != nil
	c.loginBy = time.Now().Add(c.srv.cfg.LoginTimeout)
}

func (c *conn) logIn(name string, password []byte) bool {
	u := c.srv.logIn(name, password)
	if u == nil {
		c.srv.log.Warn("client gives a wrong name or password", "client", c.sock.RemoteAddr(), "user", fmt.Sprintf("%.64q", name))
		return false
	}
	c.user = u
	c.in.loggedIn = true
	return true
}

func auth(k *call) {
	name, password := defaultUser.Name, k.args[1]
	switch {
	case len(k.args) > 3:
		k.fail(syntaxError)
		return
	case len(k.args) == 3:
		name, password = string(k.args[1]), k.args[2]
	case len(k.c.srv.cfg.Users) == 0:
		k.fail("ERR AUTH <password> called without any password configured for the default user. Are you sure your configuration is correct?")
		return
	}
	if !k.c.logIn(name, password) {
		k.fail(wrongPassword)
		return
	}
	k.ok()
}

func hello(k *call) {
	c := k.c
	proto := int64(c.proto)
	args := k.args[1:]
	if len(args) > 0 {
		var ok bool
		if proto, ok = parseInt(args[0]); !ok {
			k.fail("ERR Protocol version is not an integer or out of range")
			return
		}
		if proto < 2 || proto > 3 {
			k.fail("NOPROTO unsupported protocol version")
			return
		}
		args = args[1:]
	}
	name, ok := k.helloOptions(args)
	if !ok {
		return
	}
	if c.user == nil {
		k.fail("NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO <proto> AUTH <user> <pass> option can be used to authenticate the client and select the RESP protocol version at the same time")
		return
	}
	if name != nil {
		c.setIdentity(func(i *identity) { i.name = *name })
	}
	if proto == 2 {
		c.stopListening() // RESP2 has no format for it
	}
	c.proto, k.proto, k.reply.proto = uint8(proto), uint8(proto), uint8(proto)
	st := c.srv.backend.Status()
	k.dict(7)
	k.text("server")
	k.text("redis")
	k.text("version")
	k.text(redisVersion)
	k.text("proto")
	k.int(proto)
	k.text("id")
	k.int(int64(c.id))
	k.text("mode")
	k.text("standalone")
	k.text("role")
	k.text(st.helloRole())
	k.text("modules")
	k.array(0)
}

// helloOptions parses AUTH and SETNAME.
func (k *call) helloOptions(args [][]byte) (name *string, ok bool) {
	for len(args) > 0 {
		switch {
		case is(args[0], "AUTH") && len(args) >= 3:
			if !k.c.logIn(string(args[1]), args[2]) {
				k.fail(wrongPassword)
				return nil, false
			}
			args = args[3:]
		case is(args[0], "SETNAME") && len(args) >= 2:
			if !printable(args[1]) {
				k.fail(badName)
				return nil, false
			}
			s := string(args[1])
			name = &s
			args = args[2:]
		default:
			k.fail("ERR Syntax error in HELLO option '" + string(args[0]) + "'")
			return nil, false
		}
	}
	return name, true
}
