package pgwire

import (
	"crypto/tls"
	"encoding/binary"
	"strings"
)

// StartupKind is the purpose of a client's connection.
type StartupKind uint8

// Kinds of startup.
const (
	StartupNormal StartupKind = iota // a session
	StartupCancel                    // a CancelRequest: execute it, send nothing, close
)

// Startup is what a client sends before authentication. A StartupCancel has CancelPID,
// CancelSecret and TLS; a StartupNormal has the other fields.
type Startup struct {
	Kind StartupKind
	// Version is the protocol version to use: the requested one, or AcceptConfig.MaxVersion if
	// that is lower.
	Version uint32
	// Params are the parameters in the order sent, including "user" and "database", without
	// protocol options (_pq_.*).
	Params   []Param
	User     string
	Database string // the user's name if the client sent none, as in PostgreSQL

	CancelPID    uint32
	CancelSecret []byte

	TLS *tls.ConnectionState // nil on a plain connection
}

// Param returns the last value sent for the parameter of that name, or "".
func (s *Startup) Param(name string) string {
	for i := len(s.Params) - 1; i >= 0; i-- {
		if s.Params[i].Name == name {
			return s.Params[i].Value
		}
	}
	return ""
}

// ParseStartup parses a startup packet or a CancelRequest without its length field. unknown
// lists the requested protocol options; weir supports none. Of Version, which is as the client
// sent it, only the major number is checked. Errors other than ErrMalformed are *Error, and can
// be sent to the client.
func ParseStartup(packet []byte) (s *Startup, unknown []string, err error) {
	if len(packet) < 4 {
		return nil, nil, ErrMalformed
	}
	code, rest := binary.BigEndian.Uint32(packet), packet[4:]
	if code == codeCancel {
		pid, secret, err := ParseBackendKeyData(rest)
		if err != nil {
			return nil, nil, err
		}
		return &Startup{Kind: StartupCancel, CancelPID: pid, CancelSecret: append([]byte(nil), secret...)}, nil, nil
	}
	if code>>16 != 3 {
		return nil, nil, NewFatal(CodeFeatureNotSupported, "unsupported frontend protocol %d.%d: weir speaks 3.0 to 3.2", code>>16, code&0xffff)
	}
	s = &Startup{Kind: StartupNormal, Version: code}
	for {
		name, tail, ok := cstring(rest)
		if !ok {
			return nil, nil, ErrMalformed
		}
		if len(name) == 0 {
			if len(tail) != 0 {
				return nil, nil, ErrMalformed
			}
			break
		}
		value, tail, ok := cstring(tail)
		if !ok {
			return nil, nil, ErrMalformed
		}
		rest = tail
		if strings.HasPrefix(string(name), "_pq_.") {
			unknown = append(unknown, string(name))
			continue
		}
		s.Params = append(s.Params, Param{string(name), string(value)})
	}
	if s.User = s.Param("user"); s.User == "" {
		return nil, nil, NewFatal(CodeInvalidAuthorization, "no PostgreSQL user name specified in startup packet")
	}
	if s.Database = s.Param("database"); s.Database == "" {
		s.Database = s.User
	}
	return s, unknown, nil
}

// ParseOptions splits the "options" parameter of a startup packet into settings. Like
// PostgreSQL, it accepts "-c name=value", "-cname=value" and "--name=value", with backslashes
// before spaces that belong to a value, and dashes in place of underscores in names. The
// server's one-letter switches (-d, -S...) are rejected: weir could not track what they set.
func ParseOptions(options string) ([]Param, error) {
	var params []Param
	args := splitOptions(options)
	for i := 0; i < len(args); i++ {
		arg := args[i]
		var setting string
		switch {
		case arg == "-c":
			if i++; i == len(args) {
				return nil, NewFatal(CodeSyntaxError, "invalid command-line argument for server process: -c requires a value")
			}
			setting = args[i]
		case strings.HasPrefix(arg, "-c"), strings.HasPrefix(arg, "--"):
			setting = arg[2:]
		default:
			return nil, NewFatal(CodeFeatureNotSupported, "command-line argument %q in options is not supported: use -c name=value", arg)
		}
		name, value, ok := strings.Cut(setting, "=")
		if !ok || name == "" {
			return nil, NewFatal(CodeSyntaxError, "option %q requires a value", setting)
		}
		params = append(params, Param{strings.ReplaceAll(name, "-", "_"), value})
	}
	return params, nil
}

// splitOptions splits at white space; a backslash escapes the next byte.
func splitOptions(s string) []string {
	var args []string
	for {
		s = strings.TrimLeft(s, " \t\n\r\v\f")
		if s == "" {
			return args
		}
		var arg strings.Builder
		for s != "" && !strings.ContainsRune(" \t\n\r\v\f", rune(s[0])) {
			if s[0] == '\\' {
				if s = s[1:]; s == "" {
					break
				}
			}
			arg.WriteByte(s[0])
			s = s[1:]
		}
		args = append(args, arg.String())
	}
}
