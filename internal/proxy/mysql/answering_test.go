package mysql_test

import (
	"bytes"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha1"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"

	"github.com/weirdb/weir/internal/wire/mywire"
)

// answerLogin answers what a server asks until it has decided.
func (c *wire) answerLogin(password string) error {
	c.tb.Helper()
	var salt []byte
	for {
		seq, payload := c.packet()
		switch {
		case mywire.IsError(payload):
			e, err := mywire.ParseError(payload)
			if err != nil {
				return err
			}
			return e
		case mywire.IsOK(payload):
			return nil
		case bytes.Equal(payload, []byte{1, 3}): // the password is right, says caching_sha2_password
			continue
		case bytes.Equal(payload, []byte{1, 4}): // it wants the password itself
			c.sendPassword(seq+1, password, salt)
			continue
		}
		plugin, asked, err := mywire.ParseAuthSwitch(payload)
		switch salt = asked; {
		case err == nil && plugin == mywire.PluginNative:
			c.send(mywire.AppendPacket(nil, seq+1, nativeProof(password, salt)))
		case err == nil && plugin == mywire.PluginSHA2:
			c.send(mywire.AppendPacket(nil, seq+1, sha2Proof(password, salt)))
		default:
			c.tb.Fatalf("asked by %s: %v", plugin, err)
		}
	}
}

// sendPassword gives caching_sha2_password the password, over TLS or under its RSA key.
func (c *wire) sendPassword(seq byte, password string, salt []byte) {
	c.tb.Helper()
	secret := append([]byte(password), 0)
	if _, secure := c.Conn.(*tls.Conn); !secure {
		c.send(mywire.AppendPacket(nil, seq, []byte{2}))
		var payload []byte
		seq, payload = c.packet()
		block, _ := pem.Decode(payload[1:])
		if block == nil {
			c.tb.Fatalf("no key: %q", payload)
		}
		key, err := x509.ParsePKIXPublicKey(block.Bytes)
		if err != nil {
			c.tb.Fatal(err)
		}
		for i := range secret {
			secret[i] ^= salt[i%len(salt)]
		}
		if secret, err = rsa.EncryptOAEP(sha1.New(), rand.Reader, key.(*rsa.PublicKey), secret, nil); err != nil {
			c.tb.Fatal(err)
		}
		seq++
	}
	c.send(mywire.AppendPacket(nil, seq, secret))
}

// sha2Proof is what caching_sha2_password answers.
func sha2Proof(password string, salt []byte) []byte {
	if password == "" {
		return nil
	}
	proof := sha256.Sum256([]byte(password))
	twice := sha256.Sum256(proof[:])
	mask := sha256.Sum256(append(twice[:], salt...))
	for i := range proof {
		proof[i] ^= mask[i]
	}
	return proof[:]
}

// nativeProof is what mysql_native_password answers.
func nativeProof(password string, salt []byte) []byte {
	if password == "" {
		return nil
	}
	stage1 := sha1.Sum([]byte(password))
	stage2 := sha1.Sum(stage1[:])
	mask := sha1.Sum(append(bytes.Clone(salt), stage2[:]...))
	for i := range mask {
		mask[i] ^= stage1[i]
	}
	return mask[:]
}
