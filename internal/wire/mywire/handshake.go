package mywire

import (
	"encoding/binary"
	"fmt"
)

const (
	protocolVersion = 10
	// saltLen is the length in bytes of the challenge of every plugin that
	// weir speaks, as sent in a greeting or an AuthSwitchRequest. A NUL follows
	// it on the wire.
	saltLen     = 20
	saltFirst   = 8  // of them stand in the first part of a greeting
	responseLen = 32 // fixed part of a HandshakeResponse41, and all of an SSLRequest
)

// Second bytes of caching_sha2_password's AuthMoreData, and the packets with which a client
// requests the server's RSA key.
const (
	authFastDone  = 0x03 // the server knows the password's hash: an OK follows
	authFull      = 0x04 // it does not: send the password, over TLS or encrypted
	askKeySHA2    = 0x02
	askKeySHA256  = 0x01
	maxAuthPacket = 1 << 16
)

// Greeting is a server's first packet (HandshakeV10).
type Greeting struct {
	Version      string // such as "10.11.19-MariaDB-0+deb12u1"
	ConnectionID uint32
	Salt         []byte // the challenge, saltLen bytes
	Caps         Caps
	Charset      byte // of the server, by collation number
	Status       Status
	Plugin       string // the plugin that the challenge is for
}

// AppendGreeting appends the packet with which a server opens a connection. The salt must be 20
// bytes long and contain no NUL.
func AppendGreeting(dst []byte, g *Greeting) []byte {
	dst, at := begin(dst, 0)
	dst = appendCString(append(dst, protocolVersion), g.Version)
	dst = binary.LittleEndian.AppendUint32(dst, g.ConnectionID)
	dst = append(append(dst, g.Salt[:saltFirst]...), 0)
	dst = binary.LittleEndian.AppendUint16(dst, uint16(g.Caps))
	dst = append(dst, g.Charset)
	dst = binary.LittleEndian.AppendUint16(dst, uint16(g.Status))
	dst = binary.LittleEndian.AppendUint16(dst, uint16(g.Caps>>16))
	dst = append(dst, byte(len(g.Salt)+1), 0, 0, 0, 0, 0, 0)
	extended := uint32(0)
	if !g.Caps.Has(CapLongPassword) {
		extended = uint32(g.Caps >> 32)
	}
	dst = binary.LittleEndian.AppendUint32(dst, extended)
	dst = append(append(dst, g.Salt[saltFirst:]...), 0)
	return end(appendCString(dst, g.Plugin), at)
}

// ParseGreeting parses a server's first packet. An ERR packet in its place, as from a server
// with too many connections, is returned as an *Error.
func ParseGreeting(payload []byte) (*Greeting, error) {
	if IsError(payload) {
		e, err := ParseError(payload)
		if err != nil {
			return nil, err
		}
		return nil, e
	}
	if len(payload) == 0 || payload[0] != protocolVersion {
		return nil, fmt.Errorf("greeting is not of protocol version 10: %w", ErrMalformed)
	}
	version, rest, ok := cstring(payload[1:])
	if !ok || len(rest) < 4+saltFirst+1+2+1+2+2+1+10 {
		return nil, ErrMalformed
	}
	g := &Greeting{Version: string(version), ConnectionID: binary.LittleEndian.Uint32(rest)}
	g.Salt = append(g.Salt, rest[4:4+saltFirst]...)
	rest = rest[4+saltFirst+1:]
	g.Caps = Caps(binary.LittleEndian.Uint16(rest)) | Caps(binary.LittleEndian.Uint16(rest[5:]))<<16
	g.Charset = rest[2]
	g.Status = Status(binary.LittleEndian.Uint16(rest[3:]))
	authLen := int(rest[7])
	if !g.Caps.Has(CapLongPassword) {
		g.Caps |= Caps(binary.LittleEndian.Uint32(rest[14:])) << 32
	}
	rest = rest[18:]
	if !g.Caps.Has(CapsRequired) {
		return nil, fmt.Errorf("the server is older than MySQL 4.1: %w", ErrMalformed)
	}
	// The second part has at least 13 bytes, the last of which is a NUL.
	second := max(13, authLen-saltFirst)
	if len(rest) < second {
		return nil, ErrMalformed
	}
	g.Salt = append(g.Salt, rest[:saltLen-saltFirst]...)
	rest = rest[second:]
	g.Plugin = PluginNative
	if g.Caps.Has(CapPluginAuth) {
		// Servers before 5.5.10 omit the NUL (bug 59453).
		plugin, _, ok := cstring(rest)
		if !ok {
			plugin = rest
		}
		g.Plugin = string(plugin)
	}
	return g, nil
}

// Attr is one connection attribute.
type Attr struct{ Name, Value string }

// Response is a client's answer to the greeting (HandshakeResponse41).
type Response struct {
	Caps      Caps
	MaxPacket uint32 // the longest message that the client takes, in bytes
	Charset   byte   // collation number, cut to its low byte by the protocol
	User      string
	Auth      []byte // the plugin's answer to the salt
	Database  string
	Plugin    string // the plugin that Auth belongs to
	Attrs     []Attr
	ZstdLevel byte // 0 without CapZstd
}

// AppendSSLRequest appends the packet that replaces a Response before TLS starts: the first 32
// bytes of one.
func AppendSSLRequest(dst []byte, seq byte, r *Response) []byte {
	return appendResponseHead(AppendHeader(dst, responseLen, seq), r, r.Caps|CapSSL)
}

// IsSSLRequest reports whether the payload is an SSLRequest.
func IsSSLRequest(payload []byte) bool {
	return len(payload) == responseLen && Caps(binary.LittleEndian.Uint32(payload)).Has(CapSSL|CapProtocol41)
}

func appendResponseHead(dst []byte, r *Response, caps Caps) []byte {
	dst = binary.LittleEndian.AppendUint32(dst, uint32(caps))
	dst = binary.LittleEndian.AppendUint32(dst, r.MaxPacket)
	dst = append(dst, r.Charset)
	dst = append(dst, make([]byte, 19)...)
	extended := uint32(0)
	if !caps.Has(CapLongPassword) {
		extended = uint32(caps >> 32)
	}
	return binary.LittleEndian.AppendUint32(dst, extended)
}

// AppendResponse appends a HandshakeResponse41. Its strings must not contain NUL bytes. It
// omits what r.Caps does not announce.
func AppendResponse(dst []byte, seq byte, r *Response) []byte {
	dst, at := begin(dst, seq)
	dst = appendCString(appendResponseHead(dst, r, r.Caps), r.User)
	if r.Caps.Has(CapPluginAuthLenenc) {
		dst = AppendLenencString(dst, r.Auth)
	} else {
		auth := r.Auth[:min(len(r.Auth), 255)]
		dst = append(append(dst, byte(len(auth))), auth...)
	}
	if r.Caps.Has(CapConnectWithDB) {
		dst = appendCString(dst, r.Database)
	}
	if r.Caps.Has(CapPluginAuth) {
		dst = appendCString(dst, r.Plugin)
	}
	if r.Caps.Has(CapConnectAttrs) {
		dst = appendAttrs(dst, r.Attrs)
	}
	if r.Caps.Has(CapZstd) {
		dst = append(dst, r.ZstdLevel)
	}
	return end(dst, at)
}

// ParseResponse parses a HandshakeResponse41. The result does not alias the payload. Without a
// plugin's name Plugin is mysql_native_password.
func ParseResponse(payload []byte) (*Response, error) {
	if len(payload) < responseLen {
		return nil, ErrMalformed
	}
	r := &Response{
		Caps:      Caps(binary.LittleEndian.Uint32(payload)),
		MaxPacket: binary.LittleEndian.Uint32(payload[4:]),
		Charset:   payload[8],
		Plugin:    PluginNative,
	}
	if !r.Caps.Has(CapsRequired) {
		return nil, fmt.Errorf("the client is older than MySQL 4.1: %w", ErrMalformed)
	}
	if !r.Caps.Has(CapLongPassword) {
		r.Caps |= Caps(binary.LittleEndian.Uint32(payload[28:])) << 32
	}
	user, rest, ok := cstring(payload[responseLen:])
	if !ok {
		return nil, ErrMalformed
	}
	r.User = string(user)
	var auth []byte
	if r.Caps.Has(CapPluginAuthLenenc) {
		auth, rest, ok = ParseLenencString(rest)
	} else {
		auth, rest, ok = shortString(rest)
	}
	if !ok {
		return nil, ErrMalformed
	}
	r.Auth = append(r.Auth, auth...)
	return r, r.parseTail(rest)
}

// parseTail parses what follows the authentication data. Clients announce parts that they then
// omit, so each may be missing at the end.
func (r *Response) parseTail(rest []byte) error {
	if r.Caps.Has(CapConnectWithDB) && len(rest) > 0 {
		s, tail, ok := cstring(rest)
		if !ok {
			return ErrMalformed
		}
		r.Database, rest = string(s), tail
	}
	if r.Caps.Has(CapPluginAuth) && len(rest) > 0 {
		s, tail, ok := cstring(rest)
		if !ok {
			s, tail = rest, nil
		}
		r.Plugin, rest = string(s), tail
	}
	if r.Caps.Has(CapConnectAttrs) && len(rest) > 0 {
		var err error
		if r.Attrs, rest, err = parseAttrs(rest); err != nil {
			return err
		}
	}
	if r.Caps.Has(CapZstd) && len(rest) > 0 {
		r.ZstdLevel = rest[0]
	}
	return nil
}

// shortString parses a string whose length is in the byte before it.
func shortString(b []byte) (s, rest []byte, ok bool) {
	if len(b) == 0 || len(b) < 1+int(b[0]) {
		return nil, nil, false
	}
	n := 1 + int(b[0])
	return b[1:n:n], b[n:], true
}

func appendAttrs(dst []byte, attrs []Attr) []byte {
	var body []byte
	for _, a := range attrs {
		body = AppendLenencString(AppendLenencString(body, a.Name), a.Value)
	}
	return AppendLenencString(dst, body)
}

func parseAttrs(b []byte) (attrs []Attr, rest []byte, err error) {
	body, rest, ok := ParseLenencString(b)
	if !ok {
		return nil, nil, ErrMalformed
	}
	for len(body) > 0 {
		var name, value []byte
		if name, body, ok = ParseLenencString(body); !ok {
			return nil, nil, ErrMalformed
		}
		if value, body, ok = ParseLenencString(body); !ok {
			return nil, nil, ErrMalformed
		}
		attrs = append(attrs, Attr{string(name), string(value)})
	}
	return attrs, rest, nil
}

// AppendAuthSwitch appends an AuthSwitchRequest: a request to answer again, for plugin and with
// this salt.
func AppendAuthSwitch(dst []byte, seq byte, plugin string, salt []byte) []byte {
	dst, at := begin(dst, seq)
	dst = append(appendCString(append(dst, headerEOF), plugin), salt...)
	if len(salt) == saltLen { // others are sent unchanged
		dst = append(dst, 0)
	}
	return end(dst, at)
}

// ParseAuthSwitch parses an AuthSwitchRequest. A payload of one byte requests the hash of MySQL
// before 4.1: plugin is mysql_old_password then.
func ParseAuthSwitch(payload []byte) (plugin string, data []byte, err error) {
	if len(payload) == 0 || payload[0] != headerEOF {
		return "", nil, ErrMalformed
	}
	if len(payload) == 1 {
		return PluginOld, nil, nil
	}
	name, data, ok := cstring(payload[1:])
	if !ok {
		return "", nil, ErrMalformed
	}
	if n := len(data); n == saltLen+1 && data[n-1] == 0 {
		data = data[:n-1]
	}
	return string(name), data, nil
}

// AppendAuthMore appends an AuthMoreData.
func AppendAuthMore(dst []byte, seq byte, data []byte) []byte {
	dst, at := begin(dst, seq)
	return end(append(append(dst, headerAuthMore), data...), at)
}

// ChangeUser is a COM_CHANGE_USER: a login on an existing connection.
type ChangeUser struct {
	User     string
	Auth     []byte // answer to the salt of the greeting, or of the last AuthSwitchRequest
	Database string
	Charset  uint16 // collation number; 0 if the client does not say
	Plugin   string
	Attrs    []Attr
}

// AppendChangeUser appends a COM_CHANGE_USER. Its strings must not contain NUL bytes, and Auth
// has at most 255 bytes.
func AppendChangeUser(dst []byte, caps Caps, c *ChangeUser) []byte {
	dst, at := begin(dst, 0)
	dst = appendCString(append(dst, ComChangeUser), c.User)
	auth := c.Auth[:min(len(c.Auth), 255)]
	dst = append(append(dst, byte(len(auth))), auth...)
	dst = appendCString(dst, c.Database)
	dst = binary.LittleEndian.AppendUint16(dst, c.Charset)
	if caps.Has(CapPluginAuth) {
		dst = appendCString(dst, c.Plugin)
	}
	if caps.Has(CapConnectAttrs) {
		dst = appendAttrs(dst, c.Attrs)
	}
	return end(dst, at)
}

// ParseChangeUser reads a COM_CHANGE_USER. The result does not alias the
// payload.
func ParseChangeUser(payload []byte, caps Caps) (*ChangeUser, error) {
	if len(payload) == 0 || payload[0] != ComChangeUser {
		return nil, ErrMalformed
	}
	user, rest, ok := cstring(payload[1:])
	if !ok {
		return nil, ErrMalformed
	}
	auth, rest, ok := shortString(rest)
	if !ok {
		return nil, ErrMalformed
	}
	database, rest, ok := cstring(rest)
	if !ok {
		return nil, ErrMalformed
	}
	c := &ChangeUser{User: string(user), Auth: append([]byte(nil), auth...), Database: string(database), Plugin: PluginNative}
	if len(rest) < 2 {
		return c, nil
	}
	c.Charset, rest = binary.LittleEndian.Uint16(rest), rest[2:]
	r := Response{Caps: caps & (CapPluginAuth | CapConnectAttrs), Plugin: PluginNative}
	if err := r.parseTail(rest); err != nil {
		return nil, err
	}
	c.Plugin, c.Attrs = r.Plugin, r.Attrs
	return c, nil
}
