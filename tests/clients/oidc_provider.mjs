// A certified OpenID Connect provider for the tests: node oidc_provider.mjs. It prints its address. Its client `svc` (secret `svc-secret`) gets access
// tokens for the audience `gatehouse` with the claims of `POST /control/claims`. `POST /control/rotate` signs with a new key from then on,
// beside the old one; its client `bot` (secret `bot-secret`) gets tokens too; `POST /control/id_token` makes an ID token; `POST /control/ttl` sets the seconds that tokens are valid; `POST /control/nonces` says whether DPoP proofs need a nonce; tokens for the resource `urn:opaque` are opaque, and `gw` may ask what they are worth; its client `mesh` (secret `mesh-secret`) gets tokens that are bound to the certificate in `x-client-cert` (PEM, percent-encoded; RFC 8705); `POST /control/drop` withdraws the old ones. People log in at it with
// any name, by `gatehouse-cli`. `GET /control/fetches`: how often its keys were asked for.
import http from "node:http";
import { generateKeyPairSync } from "node:crypto";
import Provider from "oidc-provider";

let claims = { tenant: "acme", groups: ["engineers"] };
let keys = [];
let fetches = 0;
let ttl = 600;
let nonces = false;
let handler;
let maker;
let url;

function newKey() {
  const { privateKey } = generateKeyPairSync("rsa", { modulusLength: 2048 });
  return { ...privateKey.export({ format: "jwk" }), use: "sig", alg: "RS256", kid: `key-${Date.now()}-${keys.length}` };
}

function build() {
  const provider = new Provider(url, {
    jwks: { keys },
    clients: [
      { client_id: "gw", client_secret: "gw:secret+1", grant_types: [], redirect_uris: [], response_types: [] },
      {
        client_id: "gatehouse-cli", application_type: "native", token_endpoint_auth_method: "none", redirect_uris: ["http://127.0.0.1/callback"],
        grant_types: ["authorization_code", "refresh_token", "urn:ietf:params:oauth:grant-type:device_code"], response_types: ["code"],
      },
      { client_id: "svc", client_secret: "svc-secret", grant_types: ["client_credentials"], redirect_uris: [], response_types: [] },
      { client_id: "gatehouse", client_secret: "gatehouse-secret", grant_types: ["client_credentials"], redirect_uris: [], response_types: [] },
      { client_id: "bot", client_secret: "bot-secret", grant_types: ["client_credentials"], redirect_uris: [], response_types: [] },
      {
        client_id: "mesh", client_secret: "mesh-secret", grant_types: ["client_credentials"], redirect_uris: [], response_types: [],
        tls_client_certificate_bound_access_tokens: true,
      },
    ],
    features: {
      clientCredentials: { enabled: true },
      dPoP: { enabled: true, nonceSecret: Buffer.alloc(32, 7), requireNonce: () => nonces },
      mTLS: { enabled: true, certificateBoundAccessTokens: true, getCertificate: (ctx) => decodeURIComponent(ctx.get("x-client-cert")) || undefined },
      introspection: { enabled: true },
      revocation: { enabled: true },
      devInteractions: { enabled: true },
      deviceFlow: { enabled: true },
      resourceIndicators: {
        enabled: true,
        defaultResource: () => "urn:gatehouse",
        useGrantedResource: () => true,
        getResourceServerInfo: (ctx, resource) => ({
          scope: "infer",
          audience: resource === "urn:gatehouse" || resource === "urn:opaque" ? "gatehouse" : resource,
          accessTokenFormat: resource === "urn:opaque" ? "opaque" : "jwt",
          accessTokenTTL: ttl,
          jwt: { sign: { alg: "RS256" } },
        }),
      },
    },
    extraTokenClaims: () => claims,
    scopes: ["openid", "offline_access", "infer"],
    ttl: { Interaction: 600, Session: 600, Grant: 600, RefreshToken: 600, DeviceCode: 600, AuthorizationCode: 60 },
    rotateRefreshToken: true,
    issueRefreshToken: async () => true,
  });
  handler = provider.callback();
  maker = provider;
}

function body(request) {
  return new Promise((resolve) => {
    let text = "";
    request.on("data", (part) => (text += part));
    request.on("end", () => resolve(text));
  });
}

const server = http.createServer(async (request, response) => {
  if (request.url.startsWith("/control/")) {
    const text = await body(request);
    if (request.url === "/control/claims") claims = JSON.parse(text);
    if (request.url === "/control/nonces") nonces = JSON.parse(text);
    if (request.url === "/control/ttl") ttl = JSON.parse(text);
    if (request.url === "/control/rotate") keys = [newKey(), ...keys];
    if (request.url === "/control/drop") keys = keys.slice(0, 1);
    if (request.url === "/control/rotate" || request.url === "/control/drop") build();
    if (request.url === "/control/id_token") {
      const client = await maker.Client.find("gatehouse"); // so that the audience fits
      const token = new maker.IdToken({ sub: "svc" }, { client });
      token.scope = "openid";
      token.set("nonce", "n");
      for (const [name, value] of Object.entries(claims)) token.set(name, value);
      token.set("scope", "infer");
      response.end(JSON.stringify({ id_token: await token.issue({ use: "idtoken" }) }));
      return;
    }
    response.end(JSON.stringify({ fetches }));
    return;
  }
  if (request.url === "/jwks") fetches += 1;
  handler(request, response);
});

server.listen(0, "127.0.0.1", () => {
  url = `http://127.0.0.1:${server.address().port}`;
  keys = [newKey()];
  build();
  console.log(url);
});
