package pgwire

import "encoding/binary"

// Codes in the place of a startup packet's version.
const (
	codeCancel = 1234<<16 | 5678
	codeTLS    = 1234<<16 | 5679
	codeGSS    = 1234<<16 | 5680
)

// Kinds of Authentication message.
const (
	authOK           = 0
	authKerberosV5   = 2
	authCleartext    = 3
	authMD5          = 5
	authGSS          = 7
	authGSSContinue  = 8
	authSSPI         = 9
	authSASL         = 10
	authSASLContinue = 11
	authSASLFinal    = 12
)

// Param is one name and value: of a startup packet, a ParameterStatus or a
// setting.
type Param struct{ Name, Value string }

// AppendStartup appends a startup packet. It has no type byte.
func AppendStartup(dst []byte, version uint32, params []Param) []byte {
	at := len(dst)
	dst = binary.BigEndian.AppendUint32(append(dst, 0, 0, 0, 0), version)
	for _, p := range params {
		dst = appendCString(appendCString(dst, p.Name), p.Value)
	}
	return end(append(dst, 0), at)
}

// AppendCancelRequest appends a CancelRequest. It has no type byte.
func AppendCancelRequest(dst []byte, pid uint32, secret []byte) []byte {
	dst = binary.BigEndian.AppendUint32(dst, uint32(12+len(secret)))
	dst = binary.BigEndian.AppendUint32(dst, codeCancel)
	dst = binary.BigEndian.AppendUint32(dst, pid)
	return append(dst, secret...)
}

// AppendSSLRequest appends an SSLRequest. It has no type byte.
func AppendSSLRequest(dst []byte) []byte {
	return binary.BigEndian.AppendUint32(append(dst, 0, 0, 0, 8), codeTLS)
}

// AppendNegotiateVersion appends a NegotiateProtocolVersion with the version that the server
// will use and the protocol options that it does not support. Like PostgreSQL, it sends the
// whole version number and not only the minor version, as the documentation says; libpq expects
// that.
func AppendNegotiateVersion(dst []byte, version uint32, unknown []string) []byte {
	dst, at := begin(dst, ServerNegotiateVersion)
	dst = binary.BigEndian.AppendUint32(dst, version)
	dst = binary.BigEndian.AppendUint32(dst, uint32(len(unknown)))
	for _, name := range unknown {
		dst = appendCString(dst, name)
	}
	return end(dst, at)
}

// ParseNegotiateVersion parses the body of a NegotiateProtocolVersion.
func ParseNegotiateVersion(body []byte) (version uint32, unknown []string, err error) {
	if len(body) < 8 {
		return 0, nil, ErrMalformed
	}
	version = binary.BigEndian.Uint32(body)
	n := int(int32(binary.BigEndian.Uint32(body[4:])))
	rest := body[8:]
	if n < 0 || n > len(rest) {
		return 0, nil, ErrMalformed
	}
	for range n {
		name, tail, ok := cstring(rest)
		if !ok {
			return 0, nil, ErrMalformed
		}
		unknown, rest = append(unknown, string(name)), tail
	}
	if len(rest) != 0 {
		return 0, nil, ErrMalformed
	}
	return version, unknown, nil
}

func appendAuth(dst []byte, kind uint32, data []byte) []byte {
	dst = binary.BigEndian.AppendUint32(header(dst, ServerAuth, 4+len(data)), kind)
	return append(dst, data...)
}

// AppendAuthOK appends an AuthenticationOk.
func AppendAuthOK(dst []byte) []byte { return appendAuth(dst, authOK, nil) }

// AppendAuthCleartext appends an AuthenticationCleartextPassword.
func AppendAuthCleartext(dst []byte) []byte { return appendAuth(dst, authCleartext, nil) }

// AppendAuthMD5 appends an AuthenticationMD5Password.
func AppendAuthMD5(dst []byte, salt [4]byte) []byte { return appendAuth(dst, authMD5, salt[:]) }

// AppendAuthSASL appends an AuthenticationSASL that offers mechanisms, the preferred one first.
func AppendAuthSASL(dst []byte, mechanisms ...string) []byte {
	dst, at := begin(dst, ServerAuth)
	dst = binary.BigEndian.AppendUint32(dst, authSASL)
	for _, m := range mechanisms {
		dst = appendCString(dst, m)
	}
	return end(append(dst, 0), at)
}

// AppendAuthSASLContinue appends an AuthenticationSASLContinue.
func AppendAuthSASLContinue(dst, data []byte) []byte { return appendAuth(dst, authSASLContinue, data) }

// AppendAuthSASLFinal appends an AuthenticationSASLFinal.
func AppendAuthSASLFinal(dst, data []byte) []byte { return appendAuth(dst, authSASLFinal, data) }

// AppendPassword appends a PasswordMessage: a cleartext password or an md5 response.
func AppendPassword(dst []byte, password string) []byte {
	return appendCString(header(dst, ClientPassword, len(password)+1), password)
}

// AppendSASLInitial appends a SASLInitialResponse.
func AppendSASLInitial(dst []byte, mechanism string, data []byte) []byte {
	dst = appendCString(header(dst, ClientPassword, len(mechanism)+1+4+len(data)), mechanism)
	return append(binary.BigEndian.AppendUint32(dst, uint32(len(data))), data...)
}

// AppendSASLResponse appends a SASLResponse.
func AppendSASLResponse(dst, data []byte) []byte { return AppendMessage(dst, ClientPassword, data) }

// parseSASLInitial parses the body of a SASLInitialResponse. data is nil if the client has sent
// no initial response.
func parseSASLInitial(body []byte) (mechanism string, data []byte, err error) {
	m, rest, ok := cstring(body)
	if !ok {
		return "", nil, ErrMalformed
	}
	data, rest, ok = value(rest)
	if !ok || len(rest) != 0 {
		return "", nil, ErrMalformed
	}
	return string(m), data, nil
}

// parseAuth parses the body of an Authentication message.
func parseAuth(body []byte) (kind uint32, data []byte, err error) {
	if len(body) < 4 {
		return 0, nil, ErrMalformed
	}
	kind, data = binary.BigEndian.Uint32(body), body[4:]
	if kind == authMD5 && len(data) != 4 {
		return 0, nil, ErrMalformed
	}
	return kind, data, nil
}

// parseMechanisms parses the data of an AuthenticationSASL.
func parseMechanisms(data []byte) ([]string, error) {
	var names []string
	for {
		name, rest, ok := cstring(data)
		if !ok {
			return nil, ErrMalformed
		}
		if len(name) == 0 {
			if len(rest) != 0 {
				return nil, ErrMalformed
			}
			return names, nil
		}
		names, data = append(names, string(name)), rest
	}
}
