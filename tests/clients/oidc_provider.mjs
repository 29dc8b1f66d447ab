// A certified OpenID Connect provider for the tests: node oidc_provider.mjs. It prints its address. Its client `svc` (secret `svc-secret`) gets access
// tokens for the audience `gatehouse` with the claims of `POST /control/claims`. `POST /control/rotate` signs with a new key from then on,
// beside the old one; `POST /control/ttl` sets the seconds that tokens are valid; `POST /control/drop` withdraws the old ones. `GET /control/fetches`: how often its keys were asked for.
import http from "node:http";
import { generateKeyPairSync } from "node:crypto";
import Provider from "oidc-provider";

let claims = { tenant: "acme", groups: ["engineers"] };
let keys = [];
let fetches = 0;
let ttl = 600;
let handler;
let url;

function newKey() {
  const { privateKey } = generateKeyPairSync("rsa", { modulusLength: 2048 });
  return { ...privateKey.export({ format: "jwk" }), use: "sig", alg: "RS256", kid: `key-${Date.now()}-${keys.length}` };
}

function build() {
  const provider = new Provider(url, {
    jwks: { keys },
    clients: [
      { client_id: "svc", client_secret: "svc-secret", grant_types: ["client_credentials"], redirect_uris: [], response_types: [] },
    ],
    features: {
      clientCredentials: { enabled: true },
      introspection: { enabled: true },
      devInteractions: { enabled: false },
      resourceIndicators: {
        enabled: true,
        defaultResource: () => "urn:gatehouse",
        useGrantedResource: () => true,
        getResourceServerInfo: (ctx, resource) => ({
          scope: "infer",
          audience: resource === "urn:gatehouse" ? "gatehouse" : resource,
          accessTokenFormat: "jwt",
          accessTokenTTL: ttl,
          jwt: { sign: { alg: "RS256" } },
        }),
      },
    },
    extraTokenClaims: () => claims,
    scopes: ["infer"],
  });
  handler = provider.callback();
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
    if (request.url === "/control/ttl") ttl = JSON.parse(text);
    if (request.url === "/control/rotate") keys = [newKey(), ...keys];
    if (request.url === "/control/drop") keys = keys.slice(0, 1);
    if (request.url === "/control/rotate" || request.url === "/control/drop") build();
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
