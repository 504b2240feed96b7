/** The paths under which E2B's SDKs are served: `E2B_API_URL` and `E2B_SANDBOX_URL` end with them. */
export const E2B_PATH = '/v1/e2b';
export const ENVD_PATH = `${E2B_PATH}/envd`;
/** The path of signed addresses: the SDKs leave out that of `E2B_SANDBOX_URL` in them. */
export const FILES_PATH = '/files';

const isBelow = (path: string, base: string) => path === base || path.startsWith(`${base}/`);

/** Returns whether a path belongs to the API of sandboxes, whose key is the wallet's token, and not to what runs in one. */
export const isE2bApi = (path: string): boolean => isBelow(path, E2B_PATH) && !isBelow(path, ENVD_PATH);
